// Everything a user can get wrong in a config: one clear message that points at the line, exit code 2, no run
// directory.
#include "tiny_run.h"

#include "data/shard.h"

static char *directory;

// $D is the test's directory. The base is a config that trains; `text` replaces it, `set` is one --set.
typedef struct Mistake {
    const char *what, *text, *set;
    const char *where; // "line:column" or the option
    const char *says;
} Mistake;

#define MODEL "[model]\nhidden = 32\nlayers = 2\nheads = 4\nffn = 64\n"                                 // lines 1 to 5
#define DATA  "[data]\ntrain = [\"$D/data\"]\n"                                                         // lines 6 and 7
#define TRAIN "[train]\nseq = 32\nmicro_batch = 2\nsteps = 3\nprecision = \"fp32\"\ndevice = \"cpu\"\n" // 8 to 13

static const Mistake mistakes[] = {
    {"not TOML", MODEL DATA TRAIN "[optimizer\n", NULL, "14:", ""},
    {"a value without quotes", MODEL DATA TRAIN "[schedule]\nkind = cosine\n", NULL, "15:8", ""},
    {"an unknown section", MODEL DATA TRAIN "[optimiser]\nlr = 1\n", NULL, "14:", "[optimizer]"},
    {"an unknown key", MODEL DATA TRAIN "micro_bach = 2\n", NULL, "14:14", "did you mean \"micro_batch\""},
    {"workers that do not exist here", MODEL "[dataset]\nnum_workers = 2\n" TRAIN, NULL, "7:15",
     "data.prefetch says how many micro-batches ahead"},
    {"the same on the command line", MODEL DATA TRAIN, "data.num_workers=2", "--set data.num_workers=2",
     "has no key \"num_workers\""},
    {"a key of another section", MODEL DATA TRAIN "lr = 1e-3\n", NULL, "14:6", "key of [optimizer]"},
    {"a section as a value", MODEL DATA TRAIN "[eval]\n[[watch]]\n", NULL, "15:", "section"},
    {"text for an integer", MODEL DATA "[train]\nseq = \"long\"\n", NULL, "9:7", "takes an integer, not a string"},
    {"a fraction for an integer", MODEL DATA "[train]\nseq = 32.5\n", NULL, "9:7", "whole number"},
    {"an integer for text", MODEL DATA TRAIN "name = 7\n", NULL, "14:8", "takes a string"},
    {"a number for a switch", MODEL DATA TRAIN "graph = 1\n", NULL, "14:9", "true or false"},
    {"text that config.toml cannot hold", MODEL DATA TRAIN, "train.name=\xff", "--set train.name", "is not UTF-8 text"},
    {"the same in a list", MODEL DATA TRAIN, "data.val=\xff", "--set data.val", "is not UTF-8 text"},
    {"a NUL in a list", MODEL "[data]\ntrain = [\"a\\u0000b\"]\n" TRAIN, NULL, "7:9", "holds a NUL"},
    {"a list of the wrong kind", MODEL "[data]\ntrain = [1, 2]\n" TRAIN, NULL, "7:9", "list of strings"},
    {"below the range", MODEL DATA "[train]\nseq = 1\n", NULL, "9:7", "at least 2 tokens"},
    {"above the range", MODEL DATA TRAIN "[optimizer]\nbeta2 = 1.0\n", NULL, "15:9", "at most"},
    {"a negative count", MODEL DATA TRAIN "grad_accum = -1\n", NULL, "14:14", "at least 1"},
    {"not a number at all", MODEL DATA TRAIN "[optimizer]\nlr = nan\n", NULL, "15:6", "must be a number"},
    {"an unknown choice", MODEL DATA "[train]\nprecision = \"fp4\"\n", NULL, "9:13", "fp32|bf16|bf16-pure|fp8|fp16"},
    {"TF32 of what is not fp32", MODEL DATA "[train]\ntf32 = true\nprecision = \"bf16\"\n", NULL, "9:8",
     "this run is bf16"},
    {"TF32 on a CPU", MODEL DATA TRAIN, "train.tf32=true", "--set train.tf32", "the device is a CPU"},
    {"a loss scale that rounds", MODEL DATA TRAIN "loss_scale = 1000\n", NULL, "14:14", "512 is"},
    {"a check of FP8 without FP8", MODEL DATA TRAIN "loss_check_every = 10\n", NULL, "14:20", "compares FP8 with bf16"},
    {"an unknown schedule", MODEL DATA TRAIN "[schedule]\nkind = \"step\"\n", NULL, "15:8", "constant|cosine|wsd"},
    {"an unknown recompute mode", MODEL DATA TRAIN "[activation_checkpoint]\nmode = \"some\"\n", NULL, "15:8",
     "none|selective|full"},
    {"a token count in words", MODEL DATA "[train]\ntokens = \"many\"\n", NULL, "9:10", "6B"},
    {"the same key twice, by its other name", MODEL DATA "[train]\nseq = 32\nseq_len = 64\n", NULL, "10:11",
     "given twice"},
    {"a key twice", MODEL DATA "[train]\nseq = 32\nseq = 64\n", NULL, "10:", ""},
    {"heads that do not divide", "[model]\nhidden = 32\nlayers = 2\nheads = 4\nkv_heads = 3\nffn = 64\n" DATA TRAIN,
     NULL, "4:9", "does not divide by model.kv_heads"},
    {"a width that heads do not divide", "[model]\nhidden = 30\nlayers = 2\nheads = 4\nffn = 64\n" DATA TRAIN, NULL,
     "2:10", "does not divide by model.heads"},
    {"an odd head", "[model]\nhidden = 32\nlayers = 2\nheads = 4\nhead_dim = 7\nffn = 64\n" DATA TRAIN, NULL, "5:12",
     "odd"},
    {"no feed-forward width", "[model]\nhidden = 32\nlayers = 2\nheads = 4\n" DATA TRAIN, NULL, "",
     "leaves out model.ffn"},
    {"more choices than experts",
     "[model]\narch = \"qwen3_moe\"\nhidden = 32\nlayers = 2\nheads = 4\nexperts = 2\ntop_k = 4\nexpert_ffn = 16\n" DATA
         TRAIN,
     NULL, "7:9", "more than model.experts"},
    {"no model at all", DATA TRAIN, NULL, "", "which model"},
    {"two models", "[model]\npreset = \"smollm-360m\"\nconfig = \"x\"\n" DATA TRAIN, NULL, "3:10", "use one"},
    {"an unknown preset", "[model]\npreset = \"smollm-361m\"\n" DATA TRAIN, NULL, "2:10", "smollm-360m"},
    {"a missing config.json", "[model]\nconfig = \"$D/none.json\"\n" DATA TRAIN, NULL, "2:10", "no such file"},
    {"a missing init directory", "[model]\ninit = \"$D/none\"\n" DATA TRAIN, NULL, "2:8", "no such file"},
    {"no data", MODEL TRAIN, NULL, "", "data.train names no data"},
    {"data that is not there", MODEL "[data]\ntrain = [\"$D/nothing\"]\n" TRAIN, NULL, "7:9", "no such file"},
    {"a glob that matches nothing", MODEL "[data]\ntrain = [\"$D/*.none\"]\n" TRAIN, NULL, "7:9", "no file matches"},
    {"an unreadable shard", MODEL "[data]\ntrain = [\"$D/bad.shard\"]\n" TRAIN, NULL, "bad.shard", "not a token shard"},
    {"a directory without shards", MODEL "[data]\ntrain = [\"$D/empty\"]\n" TRAIN, NULL, "7:9", "neither"},
    {"a sequence beyond the data", MODEL DATA "[train]\nseq = 4000000\nmicro_batch = 2\nsteps = 3\n", NULL, "",
     "less than one window"},
    {"a vocabulary that is too small", MODEL "vocab = 100\n" DATA TRAIN, NULL, "8:9", "vocabulary of 257"},
    {"another tokenizer than the data's", MODEL DATA "tokenizer = \"$D/bad.shard\"\n" TRAIN, NULL, "bad.shard", ""},
    {"a sequence beyond the model", MODEL "max_seq = 16\n" DATA TRAIN, NULL, "10:7", "16 positions"},
    {"weights for other data", MODEL DATA "weights = [1, 2]\n" TRAIN, NULL, "8:11", "2 entries"},
    {"a weight of nothing", MODEL DATA "weights = [0]\n" TRAIN, NULL, "8:11", "above 0"},
    {"no end", MODEL DATA "[train]\nseq = 32\n", NULL, "", "when the run ends"},
    {"a cosine without an end", MODEL DATA "[train]\nseq = 32\nhours = 1\n[schedule]\nkind = \"cosine\"\n", NULL,
     "12:8", "when the run ends"},
    {"a warm-up beyond the end", MODEL DATA TRAIN "[schedule]\nwarmup_steps = 9\n", NULL, "15:16",
     "longer than the run"},
    {"two batches", MODEL DATA TRAIN "grad_accum = 2\nbatch_tokens = 128\n", NULL, "15:16", "both set the batch"},
    {"a batch below a sequence", MODEL DATA TRAIN "batch_tokens = 16\n", NULL, "14:16", "less than one sequence"},
    {"a rescale from nowhere", MODEL DATA TRAIN "[optimizer]\nlr_rescale = \"sqrt\"\n", NULL, "15:14",
     "lr_base_batch_tokens"},
    {"validation without data", MODEL "[data]\ntrain = [\"$D/data/train/00000.shard\"]\n" TRAIN "[eval]\nevery = 1\n",
     NULL, "15:9", "no validation data"},
    {"an unknown device", MODEL DATA "[train]\ndevice = \"tpu\"\n", NULL, "9:10", "auto, cpu, cuda"},
    {"a device without a number", MODEL DATA "[train]\ndevice = \"cuda:x\"\n", NULL, "9:10", "cuda:N, not \"cuda:x\""},
    {"more ranks than there are", MODEL DATA TRAIN "[parallelism]\ntensor_parallel_degree = 4\n", NULL, "15:26",
     "4 processes"},
    {"a path for a name", MODEL DATA TRAIN "name = \"a/b\"\n", NULL, "14:8", "not a path"},
    {"an option without a value", MODEL DATA TRAIN, "train.seq", "--set", "section.key=value"},
    {"an option that is unknown", MODEL DATA TRAIN, "train.sequence=4", "--set train.sequence=4", "unknown key"},
    {"an option out of range", MODEL DATA TRAIN, "train.seq=0", "--set train.seq=0", "at least 2"},
    {"experts of a dense model", MODEL DATA TRAIN, "model.experts=8", "--set model.experts=8", "no sparse layers"},
    {"an option of the wrong type", MODEL DATA TRAIN, "train.graph=maybe", "--set train.graph=maybe", "true or false"},
};

static char *fill(const char *text) { // $D -> directory
    TextBuffer out = {0};
    for (const char *at = text; *at;) {
        if (strncmp(at, "$D", 2) == 0) {
            text_buffer_add(&out, directory, strlen(directory));
            at += 2;
        } else {
            text_buffer_add(&out, at++, 1);
        }
    }
    return out.data;
}

static int make_directory(void **state) {
    (void)state;
    directory = tiny_directory();
    char *bad = path_join(directory, "bad.shard"), *empty = path_join(directory, "empty");
    assert_ok(file_write_atomic(bad, "this is no shard", 16));
    assert_ok(dir_make(empty));
    free(bad);
    free(empty);
    return 0;
}

static int remove_directory(void **state) {
    (void)state;
    status_free(dir_remove(directory));
    free(directory);
    return 0;
}

static void every_mistake_is_named_and_leaves_nothing_behind(void **state) {
    (void)state;
    char *path = path_join(directory, "wrong.toml"), *run = path_join(directory, "run"),
         *log = path_join(directory, "log");
    int count = sizeof mistakes / sizeof *mistakes, failed = 0;
    assert_true(count >= 30);
    for (int i = 0; i < count; i++) {
        const Mistake *mistake = &mistakes[i];
        char *text = fill(mistake->text);
        assert_ok(file_write_atomic(path, text, strlen(text)));
        const char *arguments[] = {"train", path, "--run", run, mistake->set ? "--set" : NULL, mistake->set, NULL};
        int code = hearth_run(arguments, log);
        char *said = read_text(log);
        char *place = mistake->set || !mistake->where[0] || strchr(mistake->where, '.')
                          ? text_copy(mistake->where)
                          : text_format("%s:%s", path, mistake->where);
        bool one = strncmp(said, "hearth: error: ", 15) == 0 && !strstr(said + 15, "hearth: error: ");
        bool fine = code == 2 && one && strstr(said, place) && strstr(said, mistake->says) && !file_exists(run);
        if (!fine)
            printf("%s: exit %d, wanted \"%s\" and \"%s\", got: %s\n", mistake->what, code, place, mistake->says, said);
        failed += !fine;
        if (file_exists(run)) assert_ok(dir_remove(run));
        free(place);
        free(said);
        free(text);
    }
    assert_int_equal(failed, 0);
    free(path);
    free(run);
    free(log);
}

static void the_base_config_itself_trains(void **state) {
    (void)state;
    char *path = path_join(directory, "right.toml"), *run = path_join(directory, "right"),
         *log = path_join(directory, "log");
    char *text = fill(MODEL DATA TRAIN);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    const char *arguments[] = {"train", path, "--run", run, NULL};
    assert_int_equal(hearth_run(arguments, log), 0);
    const char *again[] = {"train", path, "--run", run, NULL};
    assert_int_equal(hearth_run(again, log), 2); // the directory is taken
    char *said = read_text(log);
    assert_non_null(strstr(said, "exists already"));
    free(said);
    free(text);
    free(path);
    free(run);
    free(log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_named_and_leaves_nothing_behind),
        cmocka_unit_test(the_base_config_itself_trains),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
