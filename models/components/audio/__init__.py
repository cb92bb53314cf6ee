"""Sound as arrays: spectrograms and resampling. Containers and codecs are the API's business."""
