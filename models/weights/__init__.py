"""Where weights come from, how foreign files are read, and how tensors get into modules without a gap.

`sources.fetch(source)` gives a folder with the pinned files, `convert.converted` a safetensors file,
`loading.load_strict` fills a module and refuses anything missing, left over, or of the wrong shape or dtype.
"""
