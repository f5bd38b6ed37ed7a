//! The words that the world is made of. Which of them belong together is not here: facts do that.

pub(super) const WOMEN: [&str; 30] = [
    "Anna", "Clara", "Edith", "Fiona", "Greta", "Heidi", "Ida", "Julia", "Karin", "Lena", "Maria", "Nora", "Olga",
    "Paula", "Rita", "Sonja", "Tessa", "Ulla", "Vera", "Wanda", "Zelda", "Alma", "Berta", "Cora", "Dora", "Elsa",
    "Freda", "Gina", "Hilda", "Irma",
];

pub(super) const MEN: [&str; 30] = [
    "Adam", "Boris", "Carl", "David", "Emil", "Felix", "Georg", "Hugo", "Ivan", "Jonas", "Klaus", "Leo", "Martin",
    "Nils", "Oscar", "Peter", "Quentin", "Rolf", "Simon", "Thomas", "Ulrich", "Victor", "Walter", "Xaver", "Yusuf",
    "Zeno", "Albert", "Bruno", "Conrad", "Dieter",
];

/// Invented: nothing that a reader knows of real animals helps.
pub(super) const ANIMALS: [&str; 40] = [
    "zorp", "wug", "blick", "dax", "fep", "gorp", "hib", "jup", "kiv", "lom", "mib", "nalp", "pim", "quib", "rop",
    "snark", "tove", "vim", "wib", "yag", "zib", "brof", "drun", "flib", "glap", "krell", "plon", "prusk", "slom",
    "spon", "stib", "thrap", "trell", "twim", "vorp", "wexel", "yub", "mork", "dulp", "kesk",
];

pub(super) const PLACES: [&str; 30] = [
    "Dorvel", "Kessam", "Brint", "Olmar", "Tarnow", "Velby", "Harlow", "Marnet", "Lodwick", "Pelham", "Ravik",
    "Sotter", "Yarrel", "Zandt", "Arvik", "Bolden", "Corley", "Denholt", "Elstow", "Farrow", "Gant", "Hesper", "Ingle",
    "Jorvik", "Kell", "Lunden", "Morven", "Norrel", "Orsay", "Penwick",
];

pub(super) const REGIONS: [&str; 6] = ["Astor", "Belmark", "Cindra", "Dunmore", "Eskal", "Fenwold"];

/// Five for each of [`USES`], in its order.
pub(super) const OBJECTS: [&str; 60] = [
    "pot", "pan", "kettle", "ladle", "spoon", "pen", "pencil", "chalk", "stamp", "quill", "spade", "rake", "shovel",
    "hoe", "trowel", "needle", "thimble", "spool", "pin", "bobbin", "broom", "brush", "mop", "sponge", "bucket", "net",
    "hook", "rod", "trap", "reel", "ruler", "scale", "clock", "compass", "gauge", "lamp", "candle", "torch", "lantern",
    "match", "basket", "bag", "box", "sack", "crate", "drum", "flute", "harp", "horn", "bell", "ball", "kite", "doll",
    "puzzle", "top", "pillow", "blanket", "cot", "hammock", "sheet",
];

pub(super) const USES: [&str; 12] = [
    "cooking",
    "writing",
    "digging",
    "sewing",
    "cleaning",
    "fishing",
    "measuring",
    "giving light",
    "carrying things",
    "making music",
    "playing games",
    "sleeping",
];

/// Jobs, tools and workplaces go together by their order.
pub(super) const JOBS: [&str; 20] = [
    "a baker",
    "a farmer",
    "a teacher",
    "a doctor",
    "a miller",
    "a smith",
    "a sailor",
    "a carpenter",
    "a judge",
    "a barber",
    "a butcher",
    "a gardener",
    "a painter",
    "a printer",
    "a weaver",
    "a miner",
    "a guard",
    "a clerk",
    "a chemist",
    "a pilot",
];

pub(super) const TOOLS: [&str; 20] = [
    "an oven",
    "a plough",
    "a blackboard",
    "a bandage",
    "a millstone",
    "an anvil",
    "an anchor",
    "a saw",
    "a wig",
    "a razor",
    "a cleaver",
    "a hose",
    "an easel",
    "a press",
    "a loom",
    "a pickaxe",
    "a whistle",
    "a ledger",
    "a flask",
    "a radio",
];

pub(super) const WORKPLACES: [&str; 20] = [
    "the bakery",
    "the farm",
    "the school",
    "the clinic",
    "the mill",
    "the forge",
    "the harbour",
    "the workshop",
    "the court",
    "the salon",
    "the market",
    "the park",
    "the studio",
    "the print house",
    "the cotton hall",
    "the mine",
    "the prison",
    "the bank",
    "the lab",
    "the airport",
];

pub(super) const FOODS: [&str; 12] = [
    "bread", "cheese", "soup", "rice", "plums", "pears", "beans", "pancakes", "porridge", "carrots", "noodles",
    "pudding",
];

/// Classes and bodies go together by their order.
pub(super) const CLASSES: [&str; 5] = ["a bird", "a fish", "an insect", "a reptile", "a mammal"];

pub(super) const BODIES: [&str; 5] = ["feathers", "fins", "six legs", "scales", "fur"];

pub(super) const COLOURS: [&str; 10] =
    ["red", "blue", "green", "yellow", "black", "white", "brown", "grey", "purple", "orange"];

pub(super) const SOUNDS: [&str; 10] =
    ["a howl", "a hum", "a click", "a bark", "a chirp", "a growl", "a hiss", "a squeak", "a croak", "a buzz"];

pub(super) const DIETS: [&str; 10] =
    ["berries", "seeds", "leaves", "grass", "roots", "worms", "snails", "nuts", "moss", "crabs"];

pub(super) const HABITATS: [&str; 10] = [
    "the forest",
    "the desert",
    "the swamp",
    "the hills",
    "the lake",
    "the caves",
    "the meadow",
    "the jungle",
    "the river",
    "the reeds",
];

/// Materials and properties go together by their order.
pub(super) const MATERIALS: [&str; 10] =
    ["copper", "glass", "wax", "wood", "rubber", "iron", "stone", "paper", "wool", "clay"];

pub(super) const PROPERTIES: [&str; 10] = [
    "it conducts electricity",
    "it breaks easily",
    "it melts in the sun",
    "it floats on water",
    "it bends and stretches",
    "it rusts in the rain",
    "it sinks in water",
    "it tears easily",
    "it keeps the heat",
    "it hardens in fire",
];

pub(super) const ROOMS: [&str; 10] = [
    "the kitchen",
    "the attic",
    "the cellar",
    "the garden",
    "the hall",
    "the garage",
    "the bedroom",
    "the porch",
    "the shed",
    "the pantry",
];

pub(super) const PRODUCTS: [&str; 10] =
    ["honey", "silk", "salt", "butter", "soap", "rope", "wine", "bricks", "tiles", "coal"];

pub(super) const LANDMARKS: [&str; 10] = [
    "an old bridge",
    "a castle",
    "a lighthouse",
    "a temple",
    "a tower",
    "a statue",
    "a fountain",
    "a museum",
    "a theatre",
    "a palace",
];

pub(super) const CLIMATES: [&str; 6] = ["cold", "hot", "wet", "dry", "windy", "mild"];

pub(super) const CROPS: [&str; 6] = ["wheat", "barley", "corn", "cotton", "tea", "olives"];

pub(super) const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

pub(super) const NUMBERS: [&str; 12] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
