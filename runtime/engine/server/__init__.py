"""HTTP of one engine: OpenAI's API, and the platform's own paths for gateway and agent."""
