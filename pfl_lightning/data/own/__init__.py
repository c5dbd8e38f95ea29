"""Data of the user's own: arrays, folders of pictures, tables, Hugging Face's data sets."""
