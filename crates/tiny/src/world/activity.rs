//! How things are done: activities, and their steps in order.

pub(super) const STEPS: usize = 5;

#[derive(Debug)]
pub(super) struct Activity {
    pub(super) label: &'static str,
    /// Each step is a predicate: someone does it.
    pub(super) steps: [&'static str; STEPS],
}

const fn activity(label: &'static str, steps: [&'static str; STEPS]) -> Activity {
    Activity { label, steps }
}

#[rustfmt::skip]
pub(super) static ACTIVITIES: [Activity; 30] = [
    activity("Washing a dog", ["fills a tub with warm water", "lifts the dog into the tub", "rubs soap into the fur", "rinses off the foam", "dries the dog with a towel"]),
    activity("Baking bread", ["mixes flour and yeast", "works the dough with both hands", "lets the dough rest", "puts the loaf in the oven", "cuts the warm loaf into slices"]),
    activity("Planting a tree", ["digs a deep hole", "sets the young tree in the hole", "fills the hole with earth", "ties the trunk to a pole", "pours water on the roots"]),
    activity("Making tea", ["boils water in the kettle", "warms the teapot", "drops leaves into the teapot", "waits for three minutes", "pours the tea into a cup"]),
    activity("Painting a wall", ["covers the floor with paper", "opens a can of paint", "dips the roller in the paint", "rolls the paint over the wall", "lets the wall dry"]),
    activity("Fixing a bike", ["turns the bike upside down", "takes off the wheel", "finds the hole in the tube", "glues a patch on the tube", "pumps air into the tyre"]),
    activity("Building a fire", ["gathers dry sticks", "stacks the sticks in a ring of stones", "lights a match", "blows on the small flame", "adds a thick log"]),
    activity("Fishing", ["ties a hook to the line", "puts a worm on the hook", "throws the line into the lake", "feels a pull on the line", "reels in a big fish"]),
    activity("Sewing a shirt", ["draws a pattern on the cloth", "cuts the cloth along the pattern", "pins the parts together", "sews the parts with thread", "adds the buttons"]),
    activity("Writing a letter", ["takes a sheet of paper", "writes a greeting at the top", "tells the news of the week", "signs the letter with love", "folds the letter and finds a stamp"]),
    activity("Playing the violin", ["takes the violin out of the case", "tunes the strings", "raises the bow", "plays a slow song", "bows to the crowd"]),
    activity("Cutting hair", ["wraps a cape around the customer", "combs the wet hair", "cuts off the ends", "shows the back in a mirror", "sweeps the hair off the floor"]),
    activity("Milking a cow", ["leads the cow into the barn", "sits down on a stool", "places a pail under the cow", "squeezes milk into the pail", "carries the full pail away"]),
    activity("Skiing", ["puts on skis and gloves", "rides the lift to the peak", "pushes off with both poles", "races down the slope", "stops in a cloud of snow"]),
    activity("Washing clothes", ["sorts the clothes by colour", "loads the machine", "adds a cup of powder", "starts the machine", "hangs the clothes on a rope"]),
    activity("Making a salad", ["washes the leaves of the lettuce", "chops the tomatoes", "tosses all of it in a bowl", "adds oil and salt", "serves the salad on plates"]),
    activity("Taking a photo", ["sets the camera on a stand", "points the camera at the family", "asks everyone to smile", "presses the button", "checks the picture"]),
    activity("Climbing a rock", ["ties the rope to a belt", "looks for a grip", "pulls up to a ledge", "rests on the ledge", "reaches the top and waves"]),
    activity("Rowing a boat", ["pushes the boat off the shore", "sits down in the boat", "dips the oars in the water", "rows to the island", "ties the boat to a post"]),
    activity("Sending a gift", ["lays the gift in a box", "closes the box with tape", "writes the address on the box", "brings the box to the post office", "pays for the stamps"]),
    activity("Playing chess", ["sets the pieces on the board", "moves a pawn", "takes the knight", "attacks the queen", "says check and wins"]),
    activity("Riding a horse", ["brushes the horse", "straps on the saddle", "swings up on the horse", "rides around the field", "gives the horse an apple"]),
    activity("Making a vase", ["throws clay on the wheel", "wets the clay", "shapes a tall vase", "fires the vase in the kiln", "paints the vase blue"]),
    activity("Clearing snow", ["puts on boots and a hat", "opens the front door", "pushes the snow aside", "throws sand on the path", "goes in to drink cocoa"]),
    activity("Seeing the dentist", ["sits in the big chair", "opens the mouth wide", "hears the drill", "rinses with mint water", "asks for a date next year"]),
    activity("Picking apples", ["leans a ladder on the tree", "climbs up with a basket", "twists the apples off the branch", "climbs down with a full basket", "presses juice from the apples"]),
    activity("Camping", ["finds a flat spot", "spreads out the tent", "hammers in the pegs", "crawls into a sleeping bag", "watches the stars"]),
    activity("Making jam", ["weighs the fruit", "boils the fruit with sugar", "stirs until the jam is thick", "fills hot jars", "sticks labels on the jars"]),
    activity("Cleaning shoes", ["brushes off the mud", "puts wax on the leather", "rubs until the leather shines", "pulls the laces tight", "sets the shoes by the door"]),
    activity("Reading to a child", ["picks a book from the shelf", "sits on the edge of the bed", "opens the first page", "reads about a dragon", "turns off the lamp and says good night"]),
];
