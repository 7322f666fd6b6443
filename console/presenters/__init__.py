"""What pages show, made from plain values: amounts, bars, charts, glyphs, code. Pure; no row is read."""
