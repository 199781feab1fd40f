"""Interchangeable words of the logic questions."""

NONSENSE = ("blick", "dax", "fep", "glim", "jorp", "lurn", "mib", "narp", "plov", "tull", "wug", "zib")
COLORS = ("red", "blue", "green", "yellow", "black", "white", "pink", "brown")
PETS = ("cat", "dog", "horse", "rabbit", "bird", "fish", "goat", "duck")
ROOMS = ("kitchen", "garden", "garage", "bedroom", "office", "cellar", "attic")
BOXES = ("drawer", "box", "bag", "cupboard", "basket", "jar")
THINGS = ("key", "ring", "letter", "coin", "phone", "ticket")
ORDERINGS = (("taller", "shorter"), ("older", "younger"), ("faster", "slower"), ("richer", "poorer"))
ODD_ONES = {
    "fruits": ("apple", "banana", "pear", "grape", "orange"),
    "animals": ("cat", "horse", "sheep", "tiger", "rabbit"),
    "furniture": ("chair", "table", "sofa", "bed", "desk"),
    "colors": ("red", "blue", "green", "yellow", "purple"),
    "clothes": ("shirt", "sock", "coat", "hat", "glove"),
    "vehicles": ("car", "bus", "train", "truck", "bicycle"),
    "tools": ("hammer", "saw", "drill", "wrench", "pliers"),
    "body parts": ("hand", "foot", "knee", "elbow", "nose"),
}
