/* SPDX-License-Identifier: Apache-2.0 */
/* Lines as the programs print them; the source of each form is named beside it. */
#include "policy/loss_scan.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1) /* no step in the line */

static const struct sample {
  const char *line;
  double loss;
  long long step;
  double rate;
} training[] = {
    /* Hugging Face Trainer 4.x, 5.x */
    {"{'loss': 2.3104, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}", 2.3104, NONE, 0},
    {"{'loss': '2.3104', 'grad_norm': '1.5', 'learning_rate': '5e-05', 'epoch': '0.1'}", 2.3104, NONE, 0},
    {" 10%|#         | 1/10 [00:01<00:09,  1.00s/it]\r                    \r{'loss': 6.93, 'epoch': 0.1}", 6.93, NONE, 0},
    {"{'loss': 2.5, 'epoch': 0.1}\r 10%|#         | 1/10 [00:01<00:09,  1.00s/it]", 2.5, NONE, 0},
    {"{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}", NAN, NONE, 0},
    {"{\"loss\": 2.25, \"step\": 3, \"tokens_per_s\": 512.5}", 2.25, 3, 512.5},
    /* torchtitan 0.2, coloured and plain */
    {"[rank0]:[titan] 2025-10-01 10:00:00,123 - root - INFO - \033[31mstep:  1  \033[32mloss:  8.1234  \033[38;2;180;60;0m"
     "grad_norm:  1.5  \033[36mmemory:  0.50GiB(0.28%)  \033[34mtps: 1,234  \033[36mtflops: 0.10  \033[35mmfu: "
     "0.00%\033[39m",
     8.1234, 1, 1234},
    {"step: 10  loss:  4.0  grad_norm:  1.2  memory:  0.5GiB(0.3%)  tps: 12,345,678  tflops: 1,0.1", 4.0, 10, 12345678},
    /* Megatron-LM */
    {" [2025-10-01 10:00:00] iteration       10/     100 | consumed samples:          160 | elapsed time per iteration "
     "(ms): "
     "513.2 | learning rate: 1.5E-04 | global batch size:    16 | lm loss: 6.5E+00 | loss scale: 1.0 | grad norm: 2.1 |",
     6.5, 10, 0},
    {" iteration 2/ 100 | lm loss: 1.085463E+01 | load_balancing_loss: 1.0E+00 | mtp_1 loss: 9.9E+00 |", 10.85463, 2, 0},
    {" iteration 2/ 100 | load_balancing_loss: 1.0E+00 | mtp_1 loss: 9.9E+00 | lm loss: 1.25E+01 |", 12.5, 2, 0},
    /* Lightning 2.x */
    {"Epoch 0:  10%|#         | 1/10 [00:01<00:09,  1.20it/s, v_num=0, train_loss_step=2.310]", 2.31, 1, 0},
    {"Epoch 2:  30%|###       | 3/10 [00:01<00:09,  1.20it/s, v_num=0, train_loss_step=2.310, val_loss=4.0]", 2.31, 23, 0},
    {"Epoch 0: |          | 7/? [00:01<00:00,  1.20it/s, loss=2.31, v_num=0]", 2.31, NONE, 0},
    /* litgpt */
    {"Epoch 1 | iter 16 step 2 | loss train: 10.5, val: n/a | iter time: 330.11 ms (step)", 10.5, 16, 0},
    /* torchtune */
    {"Step 3 | loss:2.125 lr:2e-05 tokens_per_second_per_gpu:612.5", 2.125, 3, 0},
    /* nanoGPT */
    {"iter 10: loss 2.3104, time 123.45ms, mfu 1.20%", 2.3104, 10, 0},
    /* tutorials */
    {"Epoch [1/5], Step [100/600], Loss: 0.2345", 0.2345, 100, 0},
    {"step 00012 loss 5.5 tok/s 1234", 5.5, 12, 1234},
    {"step 3 loss 5.5 grad_norm 1.5 tokens/s 512", 5.5, 3, 512},
    {"step 3 loss 5.5 at 512 tokens/s", 5.5, 3, 512},
    {"step 12 | loss 5.5 | 1,234.5 tok/s", 5.5, 12, 1234.5},
    {"step 12 loss 5.5 12.5k tokens/s", 5.5, 12, 12500},
    {"it 4 loss 0x1.8p+1", 3.0, 4, 0},
    {"loss=2.5", 2.5, NONE, 0},
    {"Step 7: training loss = -1.5e-3", -1.5e-3, 7, 0},
    {"train loss: inf, iteration 9", INFINITY, 9, 0},
    {"[rank1]: step=9 loss=tensor(2.5000, device='cuda:0', grad_fn=<NllLossBackward0>)", 2.5, 9, 0},
    {"1/10 - 2s - loss: 2.25", 2.25, NONE, 0},
    {"loss: 1,234.5", 1234.5, NONE, 0},
    {"loss: 2.5, 125", 2.5, NONE, 0},
};

static const char *const others[] = {
    "{'eval_loss': 2.3, 'eval_runtime': 1.0, 'epoch': 1.0}",
    "{'train_runtime': 10.0, 'train_steps_per_second': 1.0, 'train_loss': 2.3, 'epoch': 1.0}",
    "  train_loss               =     2.3104",
    "  eval_loss                =     2.3104",
    "step 250: train loss 2.31, val loss 2.45",
    "\033[33mvalidate step:  5  \033[32mloss:  7.9000",
    "validation loss at iteration 10 | lm loss value: 6.5E+00 | lm loss PPL: 6.6E+02 |",
    "step 3 val_loss: 2.5",
    "step 3 val loss: 2.5",
    "step 3 test loss: 2.5",
    "step 3 aux loss: 2.5",
    "Epoch 1: train_loss_epoch=2.5",
    "Epoch 1:   0%|          | 0/10 [00:00<?, ?it/s, v_num=0, train_loss=0.331]",
    "loss scale: 65536.0",
    "loss = model(batch).loss",
    "--loss 2",
    "lossless 2",
    "loss",
    "loss:",
    "loss: none",
    "loss: information",
    "loss 2x",
    "step 3",
    "",
    "\033[",
    "\033",
};

static void check_same(const char *line, const char *what, double got, double expected) {
  ck_assert_msg(got == expected || (isnan(got) && isnan(expected)), "%s of '%s': %g, not %g", what, line, got, expected);
}

START_TEST(finds_training_losses) {
  const struct sample *sample = &training[_i];
  struct b200_loss loss;
  ck_assert_msg(b200_loss_scan(sample->line, strlen(sample->line), &loss), "nothing in '%s'", sample->line);
  check_same(sample->line, "loss", loss.loss, sample->loss);
  check_same(sample->line, "step", (double)loss.step, (double)sample->step);
  check_same(sample->line, "rate", loss.tokens_per_s, sample->rate);
}
END_TEST

static const struct {
  const char *line;
  double norm; /* NaN: none */
} norms[] = {
    {"{'loss': 2.3104, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}", 1.5},
    {"{'loss': '2.3104', 'grad_norm': '1.5', 'learning_rate': '5e-05', 'epoch': '0.1'}", 1.5},
    {"{'loss': 2.3, 'grad_norm': nan, 'epoch': 0.1}", NAN},
    {"step:  1  \033[32mloss:  8.1234  \033[38;2;180;60;0mgrad_norm:  1.5  \033[36mmemory:  0.50GiB(0.28%)", 1.5},
    {" iteration 10/ 100 | lm loss: 6.5E+00 | loss scale: 1.0 | grad norm: 2.1 | number of skipped iterations: 0 |", 2.1},
    {"step 3 loss 5.5 grad_norm 1,234.5 tokens/s 512", 1234.5},
    {"step 3 loss 5.5 gradient norm=2.5", 2.5},
    {"step 3 loss 5.5 norm 2.5", NAN},
    {"step 3 loss 5.5 layer norm 2.5", NAN},
    {"step 3 loss 5.5 grad_norm: none", NAN},
    {"norm: 2 loss 5.5", NAN},
    {"loss=2.5", NAN},
};

START_TEST(finds_gradient_norms) {
  struct b200_loss loss;
  ck_assert(b200_loss_scan(norms[_i].line, strlen(norms[_i].line), &loss));
  check_same(norms[_i].line, "gradient norm", loss.grad_norm, norms[_i].norm);
}
END_TEST

START_TEST(leaves_other_lines) {
  struct b200_loss loss;
  ck_assert_msg(!b200_loss_scan(others[_i], strlen(others[_i]), &loss), "found %g in '%s'", loss.loss, others[_i]);
  ck_assert_int_eq(loss.step, -1);
}
END_TEST

/* Every prefix in a block of its exact size: a read beyond the end is seen by the sanitizers and by valgrind. */
START_TEST(reads_no_further_than_told) {
  const char *line = training[_i].line;
  for (size_t length = 0; length <= strlen(line); length++) {
    char *copy = malloc(length ? length : 1);
    struct b200_loss loss;
    memcpy(copy, line, length);
    b200_loss_scan(copy, length, &loss);
    free(copy);
  }
}
END_TEST

START_TEST(bounds_long_lines) {
  static char line[100000];
  struct b200_loss loss;
  memset(line, 'x', sizeof(line));
  memcpy(line + sizeof(line) - 9, "\rloss 2.5", 9);
  ck_assert(b200_loss_scan(line, sizeof(line), &loss));
  ck_assert_double_eq(loss.loss, 2.5);
  line[sizeof(line) - 9] = ' ';
  ck_assert(!b200_loss_scan(line, sizeof(line), &loss));
}
END_TEST

static const struct {
  const char *pattern, *line;
  double loss; /* NaN: no match */
  long long step;
} patterns[] = {
    {"objective=([0-9.]+)", "step 3 objective=2.5 loss=7", 2.5, 3},
    {"\\bL\\s*=\\s*(\\d+\\.\\d+)", "L = 2.50 tok/s: 10", 2.5, NONE},
    {"([\\d.]+) nats", "now 3.25 nats", 3.25, NONE},
    {"[]\\s](\\d+)", "x] 42", 42, NONE},
    {"[[:alpha:]]+:([^,]+),", "abc:1.5,", 1.5, NONE},
    {"L=(\\w+)", "L=abc", NAN, NONE},
    {"L=(\\d+)?", "L=", NAN, NONE},
    {"Loss:(\\S+)", "loss:5", NAN, NONE},
    {"a\\?(\\d)", "a?7", 7, NONE},
};

START_TEST(follows_patterns) {
  struct b200_loss_pattern pattern;
  struct b200_loss loss;
  char error[128];
  ck_assert_msg(b200_loss_pattern_compile(&pattern, patterns[_i].pattern, error, sizeof(error)), "%s", error);
  const char *line = patterns[_i].line;
  bool found = b200_loss_pattern_scan(&pattern, line, strlen(line), &loss);
  ck_assert_msg(found == !isnan(patterns[_i].loss), "'%s' in '%s'", patterns[_i].pattern, line);
  if (found) {
    check_same(line, "loss", loss.loss, patterns[_i].loss);
    check_same(line, "step", (double)loss.step, (double)patterns[_i].step);
  }
  b200_loss_pattern_destroy(&pattern);
}
END_TEST

static const struct {
  const char *pattern, *message;
} bad_patterns[] = {
    {"", "it is empty"},
    {"loss", "it has no group (...) for the loss"},
    {"(?:loss) (\\d+)", "groups of the form (?...) are not POSIX; use (...)"},
    {"loss.*?(\\d+)", "a repetition cannot follow another (lazy *? and possessive ++ are not POSIX)"},
    {"loss (\\d+", "Unmatched ( or \\("},
    {"loss ([\\D]+)", "\\D, \\S and \\W cannot stand inside [...]"},
    {"loss ([\\]]+)", "inside [...] put ] first, - last and ^ elsewhere instead of escaping them"},
    {"(\\d+)\\", "it ends with a backslash"},
    {"([[:alpha)", "a [: in brackets has no :]"},
};

START_TEST(explains_bad_patterns) {
  struct b200_loss_pattern pattern;
  char error[128];
  ck_assert(!b200_loss_pattern_compile(&pattern, bad_patterns[_i].pattern, error, sizeof(error)));
  ck_assert_str_eq(error, bad_patterns[_i].message);
}
END_TEST

#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))

int main(void) {
  Suite *suite = suite_create("loss_scan");
  TCase *tests = tcase_create("all");
  tcase_add_loop_test(tests, finds_training_losses, 0, COUNT(training));
  tcase_add_loop_test(tests, finds_gradient_norms, 0, COUNT(norms));
  tcase_add_loop_test(tests, leaves_other_lines, 0, COUNT(others));
  tcase_add_loop_test(tests, reads_no_further_than_told, 0, COUNT(training));
  tcase_add_test(tests, bounds_long_lines);
  tcase_add_loop_test(tests, follows_patterns, 0, COUNT(patterns));
  tcase_add_loop_test(tests, explains_bad_patterns, 0, COUNT(bad_patterns));
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
