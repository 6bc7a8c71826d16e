"""The arithmetic of Tversky similarity, one file a primitive. reference.py is the law; the rest is proved against it."""
