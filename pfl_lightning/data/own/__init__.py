"""Data of the user's own: arrays, folders of pictures, tables, Hugging Face's data sets."""

from pfl_lightning.data.own.arrays import Arrays
from pfl_lightning.data.own.base import OwnData
from pfl_lightning.data.own.hugging_face import HuggingFace
from pfl_lightning.data.own.image_folders import ImageFolders
from pfl_lightning.data.own.raw import RawData
from pfl_lightning.data.own.table import Table

__all__ = ["Arrays", "HuggingFace", "ImageFolders", "OwnData", "RawData", "Table"]
