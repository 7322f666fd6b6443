"""The OpenAI dialect: paths, request checks, error and list shapes. Nothing outside this folder knows them."""
