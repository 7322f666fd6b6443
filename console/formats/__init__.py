"""How dates are written per language, where Django's own formats differ from the console's."""
