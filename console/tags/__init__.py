"""Tags and filters of templates, by what they are about; ``{% load console %}`` brings them all."""
