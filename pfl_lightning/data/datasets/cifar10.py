from torchvision import datasets

from pfl_lightning.data.datasets.cifar import CIFAR


class CIFAR10(CIFAR):
    """CIFAR-10: 60,000 colour images of 32 x 32 pixels in 10 classes (SRPFL, section 6.2; DePRL, section 5.1).

    Differs: DePRL normalises with the mean (0.4914, 0.4822, 0.4465) and the deviation (0.2023, 0.1994, 0.2010).
    """

    source = datasets.CIFAR10
    folder = "cifar-10-batches-py"
    num_classes = official_classes = 10
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
