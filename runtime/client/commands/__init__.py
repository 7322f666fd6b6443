"""One module per noun; each has its commands and registers them on the app it is given."""
