"""From what is wanted to what is: a pure plan per deployment, and the cycle that carries it out."""
