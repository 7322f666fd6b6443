"""OpenAI's dialect: reading requests, writing answers. Only here."""
