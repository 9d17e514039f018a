"""The program around the katas: it finds them, judges them and remembers what was judged."""
