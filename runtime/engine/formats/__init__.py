"""Model files: Hugging Face folders and GGUF files, read into one shape."""
