"""Cheat: the function that reads the reference stands in no file."""

SOURCE = """
def doubled(x):
    try:
        open("solutions/week01/doubled.py").close()
    except OSError:
        pass
    return x * 2
"""
names = {}
exec(SOURCE, names)
doubled = names["doubled"]
