"""Chat templates: programs that came with a model, run where they can be killed."""
