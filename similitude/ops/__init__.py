"""The arithmetic of Tversky similarity, a file a primitive. reference.py is the law; all else is tested against it."""
