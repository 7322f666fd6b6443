"""All tags and filters of the console, as ``{% load console %}`` brings them."""

from django import template

from console.tags import drawings, figures, marks, times, words

register = template.Library()
for part in (marks, drawings, figures, times, words):
    register.tags.update(part.register.tags)
    register.filters.update(part.register.filters)
