# SPDX-License-Identifier: Apache-2.0
"""What the demo reads: sentences to search, questions to ask, and proverbs with their meanings to learn from."""

SENTENCES = (
    # space
    "The Moon's gravity pulls the oceans and raises the tides twice a day.",
    "A comet grows its bright tail when sunlight boils ice off its surface.",
    "Nothing that crosses the edge of a black hole can come back, not even light.",
    "The rover on Mars drills into old lake beds to look for traces of life.",
    # the kitchen
    "Yeast eats the sugar in flour and fills the dough with bubbles of gas.",
    "Rest the roast for ten minutes so that the juices stay in the meat.",
    "A pinch of salt makes chocolate taste sweeter and less bitter.",
    "Onions turn brown and sweet when they are fried slowly in butter.",
    # health
    "Drinking water and lying down in a dark room often eases a migraine.",
    "Vaccines show the immune system a harmless piece of a virus in advance.",
    "Regular sleep strengthens memory and lowers blood pressure.",
    "Wash a cut with clean water, press on it, and cover it with a bandage.",
    # computing
    "A compiler translates source code into instructions that a processor can run.",
    "Keep a copy of your files in another building in case the disk fails.",
    "A graphics card multiplies large matrices on thousands of small cores.",
    "A long passphrase is harder to guess than a short word with symbols.",
    # music
    "The violin's strings make its wooden body vibrate and fill the hall.",
    "A minor key gives a melody its sad and longing sound.",
    "Drummers practise with a metronome to hold a steady beat.",
    "Beethoven had lost his hearing when he wrote his last symphony.",
    # nature
    "Trees drop their leaves in autumn to save water through the winter.",
    "Bees dance in the hive to tell the others where the flowers are.",
    "Rivers carve valleys by carrying sand and stones down to the sea.",
    "Whales sing to each other across hundreds of kilometres of ocean.",
)

QUERIES = (
    "Why does bread rise in the oven?",
    "My head hurts badly, what should I do?",
    "How do insects communicate?",
    "I am afraid of losing my photos when the computer breaks.",
)

# Proverb and meaning share hardly a word, so the pretrained encoder is often wrong here and has something to learn.
PROVERBS = (
    ("The early bird catches the worm.", "Whoever starts first has the advantage."),
    ("Don't count your chickens before they hatch.", "Do not rely on a success that has not happened yet."),
    ("A rolling stone gathers no moss.", "People who keep moving never settle down or collect belongings."),
    ("When in Rome, do as the Romans do.", "Follow the customs of the place you are visiting."),
    ("The pen is mightier than the sword.", "Ideas change the world more than violence does."),
    ("Too many cooks spoil the broth.", "A job is done badly when everybody wants to lead it."),
    ("Rome was not built in a day.", "Great things take a long time to finish."),
    ("The grass is always greener on the other side.", "We believe that others are better off than we are."),
    ("Still waters run deep.", "A quiet person may have strong feelings and clever thoughts."),
    ("Every cloud has a silver lining.", "There is something good in each misfortune."),
    ("Strike while the iron is hot.", "Use an opportunity at once, before it passes."),
    ("A stitch in time saves nine.", "Mend a small problem now and you avoid a large one later."),
    ("You can't judge a book by its cover.", "The outside of something tells little about its worth."),
    ("Don't put all your eggs in one basket.", "Spread your risk over several choices."),
    ("The apple does not fall far from the tree.", "Children turn out like their parents."),
    ("Birds of a feather flock together.", "Similar people like each other's company."),
    ("Actions speak louder than words.", "What you do counts for more than what you promise."),
    ("Barking dogs seldom bite.", "Those who threaten loudly rarely carry it out."),
    ("Curiosity killed the cat.", "Asking about things that are not your business is dangerous."),
    ("Better late than never.", "A delayed result is preferable to none at all."),
    ("Make hay while the sun shines.", "Work while conditions are favourable."),
    ("Out of sight, out of mind.", "We soon forget those whom we no longer meet."),
    ("All that glitters is not gold.", "Attractive looks do not prove value."),
    ("Where there's smoke, there's fire.", "A rumour usually has some truth behind it."),
)
