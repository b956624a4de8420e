// The stories' vocabulary and grammar, and the small template language they are written in: [a|b] picks one (brackets
// do not nest), {slot} fills in, and {a} becomes "a" or "an" by the word that follows.
#include "data/synth.h"

#include "base/rng.h"

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const girls[] = {"Lily", "Mia", "Anna", "Sue", "Emma", "Rose", "Lucy", "Nora"};
static const char *const boys[] = {"Tom", "Ben", "Max", "Sam", "Leo", "Tim", "Jack", "Finn"};
static const char *const kid_kinds[] = {"little", "kind", "happy", "brave",   "curious",
                                        "clever", "shy",  "quiet", "cheerful"};
static const char *const animals[] = {"rabbit", "owl",  "fox",  "squirrel", "bear",
                                      "mouse",  "duck", "frog", "turtle",   "dog"};
static const char *const animal_kinds[] = {"kind", "wise", "old", "small", "friendly", "big", "funny", "gentle"};
static const char *const toys[] = {"ball", "kite", "doll", "boat", "drum", "hat", "train", "book"};
static const char *const colors[] = {"red", "blue", "green", "yellow", "purple", "orange", "white", "pink", "brown"};
static const char *const places[] = {"park", "forest", "beach",   "garden", "river", "hill",
                                     "farm", "lake",   "village", "meadow", "market"};
static const char *const weathers[] = {"sunny", "warm", "windy", "bright", "cold", "cloudy", "quiet", "lovely"};
static const char *const parents[] = {"mom", "dad", "grandma", "grandpa"};
static const char *const foods[] = {"apple", "cake", "muffin", "cookie", "pear", "sandwich", "carrot", "orange"};
static const char *const hiding[] = {"a tree", "a bush", "the bench", "a big rock", "the bridge", "a log", "the fence"};
static const char *const feelings[] = {"happy", "glad", "proud", "thankful", "full of joy"};

typedef struct Story {
    uint64_t seed, index, draws;
    const char *name, *she, *her, *hers, *kid; // hero: "she", "her" (object), "her" (possessive)
    const char *helper, *helper_called, *helper_intro, *helper_she, *helper_her, *helper_hers;
    const char *toy, *color, *place, *weather, *kind, *parent, *food, *hiding, *feeling;
    char helper_text[64], called_text[64], intro_text[96];
    TextBuffer *out;
} Story;

static uint64_t story_draw(Story *story, uint64_t bound) {
    return rng_below(story->seed, RNG_STREAM_STORIES, story->index * 1024 + story->draws++, bound);
}
#define PICK(story, array) ((array)[story_draw(story, COUNT(array))])

// ---- plots
// ------------------------------------------------------------------------------------------------------------ Each
// part is one paragraph's worth; the order is the plot: wish, obstacle, try, help, end.

typedef struct Plot {
    const char *wish, *obstacle, *attempt, *help, *end;
    bool animal; // the helper must be an animal
} Plot;

static const Plot plots[] = {
    {// a toy is lost and found
     "{N} had {a} {col} {toy}. {S} loved {p} {toy} [very much|more than anything] and took it everywhere.",
     "One {w} day, {N} went to the {place} with {p} {toy}. {S} [played and played|ran and jumped|sang and danced]. "
     "[But then|Suddenly] {s} saw that {p} {toy} was gone! {N} was very sad.",
     "{S} looked [near the water|in the tall grass|next to the path], but the {toy} was not there. {S} [sat down and "
     "cried|began to cry|felt like crying].",
     "Then {hi} came by. \"Why are you [sad|crying], {N}?\" asked {h}. \"I lost my {col} {toy},\" said {N}. \"[Do not "
     "worry|Do not cry|Do not be sad]. I will help you,\" said {h}. They looked together. At last {hs} found the {toy} "
     "[behind|under|near] {hide}. \"[Here it is|Look, there it is]!\" said {h}.",
     "{N} was so {feel}. {S} hugged {p} {toy} and said, \"Thank you, {hv}!\" From that day on, {N} and {h} were [best "
     "friends|good friends]."},
    {// a toy is stuck in a tree
     "{N} got {a} {col} {toy} from {p} {par}. {S} wanted to show it to [everyone|all {p} friends].",
     "One {w} day, {s} took the {toy} to the {place}. [A strong wind came|The wind blew hard], and the {toy} flew up "
     "into "
     "a tall tree. \"Oh no! My {toy} is stuck!\" said {N}.",
     "{N} jumped as high as {s} could. {S} [threw a stick|shook the tree|tried to climb], but the {toy} did not come "
     "down.",
     "{HI} saw {o} and came closer. \"Can you help me, please?\" asked {N}. \"Yes, I can,\" said {h}. {HS} climbed up "
     "the tree and pulled the {toy} out. \"Be careful!\" said {N}. Soon {h} came down with the {toy}.",
     "{N} smiled. \"Thank you, {hv}! You are so [brave|kind|strong],\" {s} said. They played with the {col} {toy} "
     "until the "
     "sun went down. {N} was very {feel}."},
    {// a toy breaks
     "{N} liked to play with {p} {col} {toy}. {S} played with it every [day|morning] [at home|in the garden|with {p} "
     "{par}].",
     "One day, {N} dropped the {toy} and it broke. \"Oh no!\" {s} said. \"My {toy} is broken.\" {S} felt very sad.",
     "{N} tried to fix it, but {s} did not know how. The {toy} [fell apart again|still did not work].",
     "{HI} heard {o} and asked, \"What is wrong, {N}?\" \"I broke my {toy},\" said {N}. \"Let me look,\" said {h}. "
     "{HS} "
     "got some [glue|tape|string] and worked [slowly|with care]. Soon the {toy} was as good as new.",
     "\"You fixed it!\" said {N}. {S} was so {feel}. {N} thanked {h} and gave {ho} a big hug. {N} learned to be [more "
     "careful|gentle] with {p} {toy}."},
    {// lost on the way home
     "{N} lived in a small house near the {place}. {S} liked to [explore|look for flowers|go for long walks].",
     "One {w} day, {s} walked very far. Soon {s} did not know the way home. It was getting dark, and {N} was scared.",
     "{S} [walked left and then right|called for {p} {par}|looked for the path], but {s} could not find the way.",
     "Then {s} met {hi}. \"Are you lost?\" asked {h}. \"Yes, I want to go home,\" said {N}. \"I know the way. Follow "
     "me,\" "
     "said {h}. They walked [past the river|over the hill|through the trees] together. Soon {N} saw the lights of {p} "
     "house.",
     "{P} {par} was waiting at the door and hugged {o}. \"This is {h}. {HS} helped me,\" said {N}. {P} {par} gave {h} "
     "{a} "
     "{food}. {N} was {feel} to be home and never walked so far alone again."},
    {// sharing food
     "One {w} day, {N} went to the {place} to eat lunch. {S} had {a} {food} in {p} bag. It was {p} favorite food.",
     "There {s} met {hi}. {HS} looked [sad|tired] and hungry. \"What is wrong?\" asked {N}. \"I have no food,\" said "
     "{h}.",
     "{N} looked at {p} {food}. {S} was hungry too, and {s} did not want to [share|give it away]. But then {s} thought "
     "about how sad {h} was.",
     "{N} [cut|broke] the {food} in two parts. \"Here, you can have half,\" {s} said. {H} smiled. \"Thank you, {N}. "
     "You "
     "are very kind,\" said {h}. They sat down and ate together.",
     "The {food} tasted even better than before. {N} was {feel}. {S} learned that it is good to share. After that, {N} "
     "and "
     "{h} ate lunch together every day."},
    {// afraid at night
     "{N} was not afraid of anything, but {s} did not like the dark. {S} always slept with {p} {col} {toy}.",
     "One night, there was a big storm. [The wind was loud|It was very dark|The rain was loud], and {N} was scared. "
     "{S} "
     "held {p} {toy} and hid under the bed.",
     "{S} closed {p} eyes and tried to sleep, but {s} could not. {S} heard a [noise|sound] outside. What was it?",
     "{S} opened the door and saw {hi}. {HS} was wet and cold. \"I am scared of the storm,\" said {h}. \"I am scared "
     "too,\" "
     "said {N}. \"Come in. We can be brave together.\" {N} gave {h} a warm blanket and told {ho} a story.",
     "Soon the storm was over, and they both fell asleep. In the morning the sun was shining. {N} was {feel}. {S} was "
     "not "
     "afraid of the dark any more, because {s} had a friend."},
    {// a race, and trying again
     "{N} loved to run. {S} wanted to win the big race at the {place}. {S} ran every [day|morning] with {p} friends.",
     "On the day of the race, {N} ran very fast. But {s} fell [over a stone|in the mud] and hurt {p} knee. {N} wanted "
     "to "
     "stop.",
     "{S} sat on the ground. \"I can not do it,\" {s} said. {S} felt [sad|tired].",
     "{HI} ran back to {o}. \"Get up, {N}! You can do it,\" said {h}. {HS} gave {o} a hand and helped {o} stand up. "
     "\"We "
     "will run together,\" said {h}. {N} began to run again, faster and faster.",
     "They came to the end at the same time. Everyone clapped. {N} was {feel}. \"Thank you for waiting for me,\" {s} "
     "said "
     "to {h}. {P} {par} gave them both {a} {food}."},
    {// two want the same thing
     "{N} and {h} were friends. They liked to play together [at the {place}|in the garden|every day].",
     "One {w} day, they found {a} {col} {toy}. \"It is mine! I saw it first,\" said {N}. \"No, it is mine!\" said {h}. "
     "They "
     "both pulled, and they began to [fight|shout].",
     "{N} got angry and went away. But {s} was not happy. It was no fun to play alone, and {h} was sad too.",
     "Then {N} went back. \"I am sorry, {hv},\" {s} said. \"I am sorry too,\" said {h}. \"We can share the {toy}. "
     "First you "
     "play with it, and then I play with it.\" That was a good idea.",
     "They played with the {col} {toy} all day and had a lot of fun. {N} was {feel}. {S} learned that sharing is "
     "better "
     "than fighting."},
    {// an animal needs help
     "{N} liked animals very much. {S} wanted to have an animal friend of {p} own.",
     "One {w} day, {N} was at the {place} and heard a cry. {S} looked around and saw {hi}. {HS} was stuck [under a "
     "log|in the mud|in a hole] and could not get out.",
     "\"Please help me!\" said {h}. {N} pulled, but {s} was [too small|not strong enough].",
     "{N} ran home to get {p} {par}. \"Come quickly!\" {s} said. They came back with a [long rope|big stick]. They "
     "pulled "
     "and pulled, and at last {h} was free. \"Thank you, {N}! You saved me,\" said {h}.",
     "{N} gave {ho} {a} {food} and some water. {H} was happy and wanted to stay. \"Can we be friends?\" asked {h}. "
     "\"Yes!\" said {N}. {S} was so {feel}. Now {s} had an animal friend.",
     .animal = true},
    {// a present for a parent
     "It was a special day. {N} wanted to give {p} {par} a present. {S} wanted to make [an apple|a pear|a plum|a "
     "cherry] pie.",
     "{N} looked in the kitchen, but there was [no sugar|no milk|no flour]. \"Oh no! What can I do?\" said {N}.",
     "{S} went to the shop, but it was closed. {S} looked [at home|in the garden] again and found nothing.",
     "On the way home {s} met {hi}. \"Why do you look so sad?\" asked {h}. \"I want to make a pie for my {par},\" said "
     "{N}. "
     "\"I have everything you need,\" said {h}. \"Let us make it together.\" They mixed and baked, and soon the pie "
     "was "
     "ready.",
     "{P} {par} was very surprised. \"What a lovely pie!\" said {p} {par}. They all sat down and ate the pie together. "
     "{N} was "
     "{feel}, and {h} was happy too."},
};

static const char *const openings[] = {
    "Once upon a time, there was {a} {kind} {kid} named {N}.",
    "There was once {a} {kind} {kid}. {P} name was {N}.",
    "{N} was {a} {kind} {kid} who lived near the {place}.",
    "Once there was {a} {kind} {kid} named {N}. {S} lived with {p} {par}.",
    "Long ago, in a small house, there lived {a} {kind} {kid} named {N}.",
};

static const char *const closings[] = {"", "", " The end.", " They all lived happily ever after.",
                                       " It was the best day ever."};

// ---- templates -----------------------------------------------------------------------------------------------------

static void story_add(Story *story, const char *text, bool capital) {
    size_t at = story->out->length;
    text_buffer_add(story->out, text, strlen(text));
    if (capital) story->out->data[at] = (char)toupper((unsigned char)story->out->data[at]);
}

static void story_add_slot(Story *story, const char *slot, size_t length) {
    const struct {
        const char *slot, *text;
        bool capital;
    } table[] = {
        {"N", story->name},           {"s", story->she},
        {"S", story->she, true},      {"o", story->her},
        {"p", story->hers},           {"P", story->hers, true},
        {"kid", story->kid},          {"kind", story->kind},
        {"toy", story->toy},          {"col", story->color},
        {"place", story->place},      {"w", story->weather},
        {"par", story->parent},       {"food", story->food},
        {"hide", story->hiding},      {"feel", story->feeling},
        {"h", story->helper},         {"H", story->helper, true},
        {"hi", story->helper_intro},  {"HI", story->helper_intro, true},
        {"hs", story->helper_she},    {"HS", story->helper_she, true},
        {"ho", story->helper_her},    {"hp", story->helper_hers},
        {"hv", story->helper_called}, {"a", "\x01"},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (strlen(table[i].slot) == length && strncmp(table[i].slot, slot, length) == 0) {
            story_add(story, table[i].text, table[i].capital);
            return;
        }
    assert(!"a template names a slot that does not exist");
}

static void template_expand(Story *story, const char *at, const char *end) {
    while (at < end) {
        if (*at == '{') {
            const char *close = strchr(at, '}');
            story_add_slot(story, at + 1, (size_t)(close - at - 1));
            at = close + 1;
        } else if (*at == '[') {
            const char *close = strchr(at, ']');
            uint64_t choices = 1;
            for (const char *c = at + 1; c < close; c++)
                choices += *c == '|';
            const char *from = at + 1;
            for (uint64_t skip = story_draw(story, choices); skip; skip--)
                from = strchr(from, '|') + 1;
            const char *to = from;
            while (to < close && *to != '|')
                to++;
            template_expand(story, from, to);
            at = close + 1;
        } else {
            text_buffer_add(story->out, at++, 1);
        }
    }
}

static void story_add_template(Story *story, const char *text) {
    template_expand(story, text, text + strlen(text));
}

// "\x01 owl" -> "an owl"
static void fix_articles(TextBuffer *out, size_t from) {
    TextBuffer fixed = {0};
    for (size_t i = from; i < out->length; i++) {
        if (out->data[i] != '\x01') {
            text_buffer_add(&fixed, &out->data[i], 1);
            continue;
        }
        bool vowel = i + 2 < out->length && strchr("aeiou", out->data[i + 2]);
        text_buffer_add(&fixed, "an", vowel ? 2 : 1);
    }
    out->length = from;
    text_buffer_add(out, fixed.data, fixed.length);
    text_buffer_free(&fixed);
}

static void cast_characters(Story *story, bool animal_helper) {
    bool girl = story_draw(story, 2);
    story->name = girl ? PICK(story, girls) : PICK(story, boys);
    story->kid = girl ? "girl" : "boy";
    story->she = girl ? "she" : "he";
    story->her = girl ? "her" : "him";
    story->hers = girl ? "her" : "his";
    story->kind = PICK(story, kid_kinds);
    bool helper_girl = story_draw(story, 2);
    story->helper_she = helper_girl ? "she" : "he";
    story->helper_her = helper_girl ? "her" : "him";
    story->helper_hers = helper_girl ? "her" : "his";
    if (animal_helper || story_draw(story, 2)) {
        const char *animal = PICK(story, animals);
        snprintf(story->helper_text, sizeof story->helper_text, "the %s", animal);
        const char *kind = PICK(story, animal_kinds);
        snprintf(story->called_text, sizeof story->called_text, "dear %s", animal);
        snprintf(story->intro_text, sizeof story->intro_text, "%s %s %s", strchr("aeiou", kind[0]) ? "an" : "a", kind,
                 animal);
    } else {
        const char *friend_name;
        do
            friend_name = helper_girl ? PICK(story, girls) : PICK(story, boys);
        while (friend_name == story->name);
        snprintf(story->helper_text, sizeof story->helper_text, "%s", friend_name);
        snprintf(story->called_text, sizeof story->called_text, "%s", friend_name);
        snprintf(story->intro_text, sizeof story->intro_text, "%s friend %s", story->hers, friend_name);
    }
    story->helper = story->helper_text;
    story->helper_called = story->called_text;
    story->helper_intro = story->intro_text;
}

void synth_story(TextBuffer *out, uint64_t seed, uint64_t index) {
    Story story = {.seed = seed, .index = index, .out = out};
    size_t start = out->length;
    const Plot *plot = &PICK(&story, plots);
    cast_characters(&story, plot->animal);
    story.toy = PICK(&story, toys);
    story.color = PICK(&story, colors);
    story.place = PICK(&story, places);
    story.weather = PICK(&story, weathers);
    story.parent = PICK(&story, parents);
    story.food = PICK(&story, foods);
    story.hiding = PICK(&story, hiding);
    story.feeling = PICK(&story, feelings);
    story_add_template(&story, PICK(&story, openings));
    const char *const parts[] = {plot->wish, plot->obstacle, plot->attempt, plot->help, plot->end};
    for (size_t i = 0; i < COUNT(parts); i++) {
        story_add(&story, i == 1 || i == 3 ? "\n" : " ", false);
        story_add_template(&story, parts[i]);
    }
    story_add_template(&story, PICK(&story, closings));
    fix_articles(out, start);
}
