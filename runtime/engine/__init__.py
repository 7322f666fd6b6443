"""One engine process: it loads a model, schedules requests into shared steps and answers over HTTP.

The only room that imports torch, and only below ``causal`` and ``formats``; importing this package is free.
"""
