"""Raw data sets as NumPy arrays."""

from gmed.data.cifar import load_cifar10, load_cifar100
from gmed.data.dataset import Dataset
from gmed.data.mini_imagenet import load_mini_imagenet
from gmed.data.mnist import load_mnist

__all__ = ["Dataset", "load_cifar10", "load_cifar100", "load_mini_imagenet", "load_mnist"]
