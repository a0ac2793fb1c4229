"""Word lists of the generated shop: kinds of products with their attributes, options and prices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of product."""

    query: str
    category: str
    path: str
    titles: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    low: float
    high: float
    blurbs: tuple[str, ...]
    reviews: tuple[str, ...] = ("Just what I was looking for.", "Came a day late, but good.", "Not quite as pictured.")


BRANDS = (
    "Alderwick", "Brightmoor", "Calvento", "Dunmere", "Eastholm", "Farrowby", "Glenhaven", "Hartley", "Inverley",
    "Jorvane", "Kestrel", "Lindqvist", "Marlowe", "Norvale", "Oakhurst", "Pembrook", "Quillon", "Ravensby",
    "Silverton", "Thornbury", "Umberfield", "Vandermeer", "Westerly", "Yarrow", "Zellwood",
)  # fmt: skip
SERIES = ("Classic", "Essential", "Prime", "Summit", "Harbor", "Meadow", "Metro", "Studio", "Trail", "Vista")
COLOURS = (
    "black", "white", "navy blue", "red", "dark green", "grey", "brown", "pink", "purple", "yellow", "orange",
    "beige", "teal", "burgundy", "silver", "gold",
)  # fmt: skip

LETTER_SIZES = ("small", "medium", "large", "x-large", "xx-large")
SHOE_SIZES = ("6", "6.5", "7", "7.5", "8", "8.5", "9", "9.5", "10", "11", "12")
CLOTHES = (
    "machine wash", "hand wash", "long sleeve", "short sleeve", "slim fit", "loose fit", "cotton blend",
    "polyester spandex", "moisture wicking", "quick drying", "wash cold", "button closure", "elastic waist",
    "high waist", "tumble dry",
)  # fmt: skip
SHOES = (
    "rubber sole", "non slip", "memory foam", "arch support", "leather sole", "ankle strap", "lace up",
    "water resistant", "ethylene vinyl", "synthetic sole", "open toe", "closed toe",
)  # fmt: skip
CARE = (
    "cruelty free", "paraben free", "fragrance free", "alcohol free", "natural ingredients", "tea tree", "coconut oil",
    "hyaluronic acid", "sensitive skin", "dry skin", "long lasting", "easy apply", "travel size", "sulfate free",
)  # fmt: skip
DEVICES = (
    "high speed", "plug play", "easy install", "quad core", "noise cancelling", "fast charging", "high definition",
    "wireless bluetooth", "water resistant", "hands free", "carrying case", "long lasting battery", "usb port",
    "low power",
)  # fmt: skip
HOME = (
    "easy clean", "easy assemble", "space saving", "solid wood", "metal legs", "stainless steel", "machine washable",
    "super soft", "living room", "dining room", "heavy duty", "white finish", "tempered glass", "eco friendly",
)  # fmt: skip
FOOD = (
    "gluten free", "sugar free", "non gmo", "low carb", "plant based", "dairy free", "soy free", "certified organic",
    "artificial colors free", "high protein", "keto friendly", "caffeine free", "nut free", "resealable bag",
)  # fmt: skip

WORN = ("It keeps its shape wash after wash.", "Wear it at work, at home or on the road.", "True to size.")
APPLIED = ("A little goes a long way.", "Tested by dermatologists.", "For mornings and evenings alike.")
PLUGGED = (
    "In the box: the device, a cable and a short guide.",
    "Backed by two years of warranty.",
    "Sets up in minutes.",
)
PLACED = ("All screws and tools are included.", "It suits old and new rooms alike.", "Wipe it with a damp cloth.")
EATEN = ("Packed where it is made.", "A treat for the whole family.", "Keep it cool and dry.")

FASHION, BEAUTY, ELECTRONICS, GARDEN, GROCERY = "fashion", "beauty", "electronics", "garden", "grocery"
MEN, WOMEN = "Clothing, Shoes & Jewelry › Men", "Clothing, Shoes & Jewelry › Women"
CARE_PATH, TECH, ROOM, PANTRY = "Beauty & Personal Care", "Electronics", "Home & Kitchen", "Grocery & Gourmet Food"


def _worn(query: str, path: str, titles: tuple[str, ...], low: float, high: float) -> Kind:
    return Kind(query, FASHION, path, titles, CLOTHES, (("color", ()), ("size", LETTER_SIZES)), low, high, WORN)


def _shod(query: str, path: str, titles: tuple[str, ...], low: float, high: float) -> Kind:
    return Kind(query, FASHION, path, titles, SHOES, (("color", ()), ("size", SHOE_SIZES)), low, high, WORN)


def _care(query: str, path: str, titles: tuple[str, ...], low: float, high: float) -> Kind:
    sizes = ("1 fl oz", "2 fl oz", "4 fl oz", "8 fl oz", "16 fl oz", "pack of 2", "pack of 3")
    scents = ("lavender", "rose", "citrus", "vanilla", "mint", "unscented")
    return Kind(query, BEAUTY, path, titles, CARE, (("scent", scents), ("size", sizes)), low, high, APPLIED)


def _tech(query: str, path: str, titles: tuple[str, ...], styles: tuple[str, ...], low: float, high: float) -> Kind:
    return Kind(query, ELECTRONICS, path, titles, DEVICES, (("color", ()), ("style", styles)), low, high, PLUGGED)


def _home(query: str, path: str, titles: tuple[str, ...], sizes: tuple[str, ...], low: float, high: float) -> Kind:
    return Kind(query, GARDEN, path, titles, HOME, (("color", ()), ("size", sizes)), low, high, PLACED)


def _food(query: str, path: str, titles: tuple[str, ...], flavours: tuple[str, ...], low: float, high: float) -> Kind:
    packs = ("8 ounce", "12 ounce", "1 pound", "2 pound", "pack of 4", "pack of 12")
    return Kind(query, GROCERY, path, titles, FOOD, (("flavor name", flavours), ("size", packs)), low, high, EATEN)


KINDS = (
    _worn("men's dress shirts", f"{MEN} › Shirts", ("Men's Dress Shirt", "Dress Shirt for Men"), 18, 70),
    _worn("women's jumpsuits", f"{WOMEN} › Jumpsuits", ("Women's Jumpsuit", "One Piece Jumpsuit"), 20, 80),
    _worn("men's shorts", f"{MEN} › Shorts", ("Men's Shorts", "Athletic Shorts for Men"), 12, 45),
    _worn("women's sweaters", f"{WOMEN} › Sweaters", ("Women's Sweater", "Knit Pullover Sweater"), 22, 90),
    _worn("men's t-shirts", f"{MEN} › T-Shirts", ("Men's T-Shirt", "Crew Neck Tee Shirt"), 9, 35),
    _shod("women's sandals", f"{WOMEN} › Sandals", ("Women's Sandals", "Flat Sandals"), 15, 75),
    _shod("men's walking shoes", f"{MEN} › Walking Shoes", ("Men's Walking Shoes", "Walking Sneakers"), 28, 120),
    _shod("women's ankle boots", f"{WOMEN} › Boots", ("Women's Ankle Boots", "Ankle Booties"), 30, 140),
    _care("face moisturizers", f"{CARE_PATH} › Skin Care › Face", ("Face Moisturizer", "Daily Face Cream"), 8, 60),
    _care("hair shampoos", f"{CARE_PATH} › Hair Care › Shampoo", ("Hair Shampoo", "Gentle Shampoo"), 6, 40),
    _care("body lotions", f"{CARE_PATH} › Skin Care › Body", ("Body Lotion", "Rich Body Butter Lotion"), 7, 45),
    _care("lip balms", f"{CARE_PATH} › Skin Care › Lips", ("Lip Balm", "Tinted Lip Balm"), 4, 25),
    _care("deodorants", f"{CARE_PATH} › Deodorants", ("Deodorant Stick", "Roll On Deodorant"), 5, 28),
    _tech("bluetooth headphones", f"{TECH} › Audio › Headphones", ("Bluetooth Headphones", "Over Ear Headphones"),
          ("on ear", "over ear", "in ear", "neckband"), 25, 260),
    _tech("security cameras", f"{TECH} › Camera › Surveillance", ("Security Camera", "Indoor Surveillance Camera"),
          ("1 camera", "2 cameras", "4 cameras", "with hub"), 30, 300),
    _tech("tablet computers", f"{TECH} › Computers › Tablets", ("Tablet Computer", "Android Tablet"),
          ("32 gb", "64 gb", "128 gb", "256 gb"), 80, 420),
    _tech("portable speakers", f"{TECH} › Audio › Speakers", ("Portable Speaker", "Outdoor Speaker"),
          ("mini", "standard", "max", "stereo pair"), 20, 190),
    _tech("phone chargers", f"{TECH} › Accessories › Chargers", ("Phone Charger", "Wall Charger Block"),
          ("usb a", "usb c", "two ports", "three ports"), 9, 60),
    _home("coffee tables", f"{ROOM} › Furniture › Tables", ("Coffee Table", "Low Living Room Table"),
          ("30 inch", "36 inch", "42 inch", "48 inch"), 60, 380),
    _home("bar stools", f"{ROOM} › Furniture › Chairs", ("Bar Stool", "Counter Height Stool"),
          ("set of 1", "set of 2", "set of 4"), 45, 320),
    _home("throw pillow covers", f"{ROOM} › Bedding › Pillows", ("Throw Pillow Cover", "Pillow Case"),
          ("16 x 16", "18 x 18", "20 x 20", "24 x 24"), 8, 40),
    _home("book shelves", f"{ROOM} › Furniture › Shelves", ("Book Shelf", "Open Bookcase"),
          ("3 tier", "4 tier", "5 tier", "6 tier"), 40, 260),
    _home("area rugs", f"{ROOM} › Decor › Rugs", ("Area Rug", "Woven Rug"),
          ("3 x 5 ft", "4 x 6 ft", "5 x 8 ft"), 35, 290),
    _food("ground coffees", f"{PANTRY} › Beverages › Coffee", ("Ground Coffee", "Roast Coffee"),
          ("light roast", "dark roast", "hazelnut", "vanilla"), 8, 45),
    _food("protein bars", f"{PANTRY} › Snacks › Bars", ("Protein Bars", "Snack Bars"),
          ("chocolate", "peanut butter", "berry", "coconut"), 10, 50),
    _food("herbal teas", f"{PANTRY} › Beverages › Tea", ("Herbal Tea", "Loose Leaf Tea"),
          ("chamomile", "peppermint", "ginger", "hibiscus"), 6, 35),
    _food("dried fruits", f"{PANTRY} › Snacks › Fruit", ("Dried Fruit", "Dried Fruit Mix"),
          ("mango", "apple", "apricot", "cranberry"), 7, 40),
    _food("pasta sauces", f"{PANTRY} › Pantry › Sauces", ("Pasta Sauce", "Tomato Sauce"),
          ("basil", "garlic", "arrabbiata", "mushroom"), 5, 30),
)  # fmt: skip
