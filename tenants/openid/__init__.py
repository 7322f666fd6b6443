"""The company's sign-in (OpenID Connect): providers from a file, the protocol, and which person a subject is."""
