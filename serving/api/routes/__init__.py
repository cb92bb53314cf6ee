"""The routes, one file a group; `ROUTES` of each is the table that the app and its tests are built from."""
