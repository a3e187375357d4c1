/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/cmd.h"
#include "tools/lint/settings.h"
#include "tools/report/print.h"
#include "tools/shape.h"

#include "policy/cost.h"
#include "policy/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TOKENS_MAX 9
#define CUBLASLT_VERSION 130100 /* of GPUs that are named on the command line */

static const char doc[] =
    "Check the variables and rules of this environment, and what of PyTorch's and NCCL's is known to hurt; show what the "
    "rules do with the GEMMs of a log, of a model or of one shape. Nothing is run.\n"
    "\n"
    "With B200OPT_PRECISION=observe, which decides nothing, the tables are those of auto."
    "\v"
    "RULES (B200OPT_RULES, B200OPT_RULES_FILE)\n"
    "  rules   rule; rule; ...   or one a line; # comments; the first to fit wins\n"
    "  rule    term,term,...:action    or *:action\n"
    "  action  native (or bf16), auto, fp8, mxfp8, inherit (as the variables say)\n"
    "  term    KEY=VALUE, also != and for numbers < <= > >=\n"
    "          m n k batch        D[m x n] = op(A)[m x k] op(B)[k x n], in columns\n"
    "          in out tokens      of the linear layer, where the role is known\n"
    "          h                  m*n/(m+n): what conversion pays by\n"
    "          role               fprop dgrad wgrad batched other\n"
    "          dtype              bf16 f16 ...\n"
    "          bias               yes no\n"
    "          api                gemmex lt strided gemm batched\n"
    "          step rank          of the job; step is -1 until steps are found\n"
    "          index              which layer: ordinal of the GEMM of its role in\n"
    "                             one forward and backward pass. fprop 0 is the\n"
    "                             first layer's, dgrad 0 and wgrad 0 the last\n"
    "                             one's. Known from two equal steps in a row on;\n"
    "                             until then the calls of these roles stay native\n"
    "  B200OPT_RULES=\"out>=32000:native; role=wgrad,k<4096:native; *:inherit\"\n"
    "\n"
    "TABLES\n"
    "  For a model, a cell is the plan and how many times as fast the cost model\n"
    "  takes it to be: mx 1.32 is mxfp8. A GEMM that is left alone has - and the\n"
    "  same figure of what was asked for, or the letter of a reason below it.\n"
    "  Rules are taken as on rank 0, past the first steps.\n"
    "\n"
    "EXIT STATUS\n"
    "  0  the variables and rules are right\n"
    "  1  one is not, or is known to hurt\n"
    "  2  wrong arguments\n"
    "  3  the log cannot be read\n"
    "\n"
    "EXAMPLES\n"
    "  b200opt lint\n"
    "  B200OPT_PRECISION=auto b200opt lint --model llama-8b --gpu b200\n"
    "  b200opt lint --shape 4096,16384,4096,fprop --gpu h200\n"
    "  B200OPT_RULES='h<2000:native' b200opt lint b200opt-logs";

static const struct argp_option options[] = {
    {"gpu", 'g', "GPU", 0, "b300, b200, h200, h100, l40s, a100, rtx_pro_6000 (default: the log's, else b200)", 0},
    {"model", 'm', "NAME", 0, "llama-1b, -8b, -14b, -30b, -70b: the GEMMs of a training step", 0},
    {"tokens", 't', "N,N,...", 0, "Tokens of a step of one rank, at most 9 (default: 512 to 131072)", 0},
    {"shape", 's', "M,N,K,ROLE", 0, "One GEMM", 0},
    {0},
};

struct arguments {
  struct cmd_folder folder;
  const char *gpu, *model, *tokens, *shape;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct arguments *arguments = state->input;
  switch (key) {
  case 'g':
    arguments->gpu = value;
    return 0;
  case 'm':
    arguments->model = value;
    return 0;
  case 't':
    arguments->tokens = value;
    return 0;
  case 's':
    arguments->shape = value;
    return 0;
  case ARGP_KEY_ARG:
    cmd_folder_take(&arguments->folder, value);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* ---- variables and rules */

/* The policy of the environment for `device`; complaints go to stdout. Returns whether there were none. */
static bool check_environment(const struct b200_config *config, const struct b200_device *device,
                              struct b200_policy *policy) {
  char complaint[2048], text[512];
  for (int i = 0; i < config->complaint_count; i++)
    printf("wrong     %s\n", config->complaints[i]);
  b200_policy_make(policy, config, device, complaint, sizeof(complaint));
  if (complaint[0])
    printf("wrong     %s\n", complaint);
  for (int i = 0; i < policy->rule_count; i++)
    printf("rule %-4d %s\n", i + 1, b200_rule_text(&policy->rules[i], text, sizeof(text)));
  if (config->complaint_count || complaint[0])
    return false;
  printf("right     the variables, and %d rule%s%s\n", policy->rule_count, policy->rule_count == 1 ? "" : "s",
         policy->positional ? ", some of which ask where in the job a GEMM stands" : "");
  return true;
}

static const char *from_environment(const void *unused, const char *name) {
  (void)unused;
  return getenv(name);
}

/* Settings of PyTorch's and NCCL's memory. Returns whether none is known to hurt. */
static bool check_settings(void) {
  const struct report_text text = {stdout, false};
  struct settings_facts facts = {.get = from_environment};
  bool good = true;
  settings_ask_machine(&facts);
  for (int i = 0; i < SETTINGS_COUNT; i++) {
    enum settings_row row = (enum settings_row)i;
    if (!settings_hurt(&facts, row))
      continue;
    char line[1024];
    snprintf(line, sizeof(line), "%s (%s)", settings_text(row), settings_source(row));
    report_line(&text, "hurts", line);
    good = false;
  }
  return good;
}

/* The decision as the tables show it: observe decides nothing. */
static struct b200_plan decide(const struct b200_policy *policy, const struct b200_facts *facts,
                               const struct b200_position *position) {
  int precision = policy->precision == B200_PRECISION_OBSERVE ? B200_PRECISION_AUTO : policy->precision;
  return b200_decide_as(policy, precision, facts, position, 0);
}

static const char *asked(const struct b200_config *config, char *out, size_t size) {
  char precision[32], strategy[32];
  b200_config_value(config, B200_ENV_precision, precision, sizeof(precision));
  b200_config_value(config, B200_ENV_strategy, strategy, sizeof(strategy));
  snprintf(out, size, "%s%s, %s", precision, config->precision == B200_PRECISION_OBSERVE ? " (shown: auto)" : "", strategy);
  return out;
}

static void print_title(const char *what, const struct b200_config *config, const struct b200_device *device) {
  char text[96];
  printf("\n%s, %s on %s\n", what, asked(config, text, sizeof(text)), device->name);
  if (strcmp(b200_cost_row_name(b200_cost_row(device)), "unknown") == 0)
    printf("the cost model does not know this GPU: its figures are guesses\n");
}

/* ---- one shape */

static const char *role_accepted = "fprop, dgrad, wgrad";

/* A positive number up to 2^40 at `*text`, which is moved behind it and the character `end`. */
static bool take_number(const char **text, char end, int64_t *out) {
  char *behind;
  long long number = strtoll(*text, &behind, 10);
  if (behind == *text || **text < '0' || **text > '9' || number < 1 || number > 1LL << 40 || *behind != end)
    return false;
  *text = behind + (end != '\0');
  *out = number;
  return true;
}

static struct b200_facts parse_shape(const char *argument) {
  int64_t m, n, k;
  const char *text = argument;
  if (take_number(&text, ',', &m) && take_number(&text, ',', &n) && take_number(&text, ',', &k))
    for (enum b200_role role = B200_ROLE_FPROP; role <= B200_ROLE_WGRAD; role++)
      if (strcmp(text, b200_role_names[role]) == 0)
        return shape_facts(role, m, n, k);
  cmd_fail(B200_EXIT_USAGE, "lint: --shape '%s' is not M,N,K,ROLE with numbers from 1 and a role of %s", argument,
           role_accepted);
}

static void print_shape(const struct b200_policy *policy, const struct b200_facts *facts, const struct b200_config *config) {
  struct b200_plan plan = decide(policy, facts, NULL);
  print_title("one GEMM", config, &policy->device);
  printf("plan      %s: %s\n", b200_format_names[plan.format], b200_reason_names[plan.reason]);
  printf("reason    %s\n", b200_reason_help[plan.reason]);
  for (enum b200_format format = B200_FORMAT_NATIVE; format < B200_FORMAT_COUNT; format++) {
    double ns = b200_cost_narrow(&policy->device, &facts->gemm, format);
    double quantise = b200_cost_quantise(&policy->device, &facts->gemm, format);
    if (ns > 0 && format == B200_FORMAT_NATIVE)
      printf("%-9s %.1f us by the cost model\n", b200_format_names[format], ns / 1e3);
    else if (ns > 0)
      printf("%-9s %.1f us, of which quantisation %.1f us\n", b200_format_names[format], ns / 1e3, quantise / 1e3);
  }
  if (plan.format != B200_FORMAT_NATIVE)
    printf("operands  A %s, B %s%s, in %u piece%s\n", b200_element_names[plan.a], b200_element_names[plan.b],
           plan.tn ? ", both made K-major" : "", plan.cuts, plan.cuts == 1 ? "" : "s");
}

/* ---- a model */

static const struct model {
  const char *name;
  int64_t layers, hidden, ffn, kv, vocabulary;
  const char *help;
} models[] = {
#define B200_MODEL(name, layers, hidden, ffn, kv, vocabulary, help) {name, layers, hidden, ffn, kv, vocabulary, help},
#include "tools/lint/models.def"
#undef B200_MODEL
};

static const struct model *find_model(const char *name) {
  char names[256] = "";
  for (size_t i = 0; i < COUNT(models); i++) {
    if (strcmp(models[i].name, name) == 0)
      return &models[i];
    snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "", models[i].name);
  }
  cmd_fail(B200_EXIT_USAGE, "lint: no model '%s' is known (accepted: %s)", name, names);
}

static int parse_tokens(const char *argument, int64_t *tokens) {
  int count = 0;
  if (!argument) {
    for (int64_t n = 512; n <= 131072; n *= 2)
      tokens[count++] = n;
    return count;
  }
  for (const char *text = argument; count < TOKENS_MAX;) {
    char end = text[strcspn(text, ",")];
    if (!take_number(&text, end, &tokens[count]))
      break;
    count++;
    if (!end)
      return count;
  }
  cmd_fail(B200_EXIT_USAGE, "lint: --tokens '%s' is not N,N,... with 1 to %d numbers from 1", argument, TOKENS_MAX);
}

/* Over all GEMMs of a step. */
struct sums {
  double native_ns, planned_ns, flops, converted_flops;
};

static void add_plan(struct sums *sums, const struct b200_policy *policy, const struct b200_gemm *gemm,
                     const struct b200_plan *plan, double times) {
  double native = b200_cost_native(&policy->device, gemm), flops = (double)b200_gemm_flops(gemm);
  bool converted = plan->format != B200_FORMAT_NATIVE;
  sums->native_ns += times * native;
  sums->planned_ns += times * (converted ? (double)plan->narrow_ns : native);
  sums->flops += times * flops;
  sums->converted_flops += converted ? times * flops : 0;
}

/* The reasons of a table's cells, each with a letter in the order in which they came. */
struct legend {
  enum b200_reason reasons[B200_REASON_COUNT];
  int count;
  bool converts, mixes;
};

static char letter_of(struct legend *legend, enum b200_reason reason) {
  int i = 0;
  while (i < legend->count && legend->reasons[i] != reason)
    i++;
  if (i == legend->count)
    legend->reasons[legend->count++] = reason;
  return (char)('a' + i);
}

/* `mixed`: not all layers have this plan. */
static void print_cell(const struct b200_plan *plan, bool mixed, struct legend *legend) {
  static const char *const marks[B200_FORMAT_COUNT] = {"-", "fp8", "mx"};
  char cell[32], gap = mixed ? '*' : ' ';
  if (plan->narrow_ns > 0)
    snprintf(cell, sizeof(cell), "%s%c%.2f", marks[plan->format], gap, (double)plan->native_ns / (double)plan->narrow_ns);
  else
    snprintf(cell, sizeof(cell), "-%c(%c)", gap, letter_of(legend, (enum b200_reason)plan->reason));
  legend->converts |= plan->narrow_ns > 0;
  legend->mixes |= mixed;
  printf(" %8s", cell);
}

static void print_legend(const struct legend *legend) {
  if (legend->converts)
    printf("fp8, mx (mxfp8), - (left alone), with the cost model's speed-up of what was asked for\n");
  if (legend->mixes)
    printf("* not the same in all layers: what most of them do\n");
  for (int i = 0; i < legend->count; i++)
    printf("(%c) %s: %s\n", 'a' + i, b200_reason_names[legend->reasons[i]], b200_reason_help[legend->reasons[i]]);
}

struct linear {
  const char *name;
  int64_t out, in;
  int first, per_layer; /* places in a layer */
  bool is_head;         /* once, behind all layers */
};

enum { LINEARS_PER_LAYER = 7, SETTLED_STEP = 1 << 20 };

/* The index of rules: backward passes go through the layers from the last to the first. */
static struct b200_position place_of(const struct linear *linear, const struct model *model, enum b200_role role,
                                     int64_t ordinal) {
  int64_t last = model->layers * LINEARS_PER_LAYER, layer = ordinal / linear->per_layer;
  int64_t index = linear->is_head ? last : layer * LINEARS_PER_LAYER + linear->first + ordinal % linear->per_layer;
  return (struct b200_position){
      .step = SETTLED_STEP, .index = role == B200_ROLE_FPROP ? index : last - index, .rank = 0, .world = 1};
}

/* All GEMMs of one cell. */
static void add_cell(const struct b200_policy *policy, const struct linear *linear, const struct model *model,
                     const struct b200_facts *facts, struct sums *sums, struct legend *legend) {
  int64_t times = linear->is_head ? 1 : model->layers * linear->per_layer, counts[B200_FORMAT_COUNT] = {0};
  struct b200_plan plans[B200_FORMAT_COUNT];
  enum b200_format most = B200_FORMAT_NATIVE;
  for (int64_t i = 0; i < times; i++) {
    struct b200_position position = place_of(linear, model, (enum b200_role)facts->gemm.role, i);
    struct b200_plan plan = decide(policy, facts, &position);
    add_plan(sums, policy, &facts->gemm, &plan, 1);
    counts[plan.format]++;
    plans[plan.format] = plan;
  }
  for (enum b200_format format = B200_FORMAT_NATIVE; format < B200_FORMAT_COUNT; format++)
    most = counts[format] > counts[most] ? format : most;
  print_cell(&plans[most], counts[most] < times, legend);
}

static void print_linear(const struct b200_policy *policy, const struct linear *linear, const struct model *model,
                         const int64_t *tokens, int count, struct sums *sums, struct legend *legend) {
  for (enum b200_role role = B200_ROLE_FPROP; role <= B200_ROLE_WGRAD; role++) {
    printf("%-8s %-6s", role == B200_ROLE_FPROP ? linear->name : "", b200_role_names[role]);
    for (int i = 0; i < count; i++) {
      int64_t n = tokens[i];
      struct b200_facts facts = role == B200_ROLE_FPROP   ? shape_facts(role, linear->out, n, linear->in)
                                : role == B200_ROLE_DGRAD ? shape_facts(role, linear->in, n, linear->out)
                                                          : shape_facts(role, linear->in, linear->out, n);
      add_cell(policy, linear, model, &facts, &sums[i], legend);
    }
    putchar('\n');
  }
}

static void print_model(const struct b200_policy *policy, const struct b200_config *config, const struct model *model,
                        const int64_t *tokens, int count) {
  const struct linear linears[] = {
      {"q", model->hidden, model->hidden, 0, 1, false}, {"k,v", model->kv, model->hidden, 1, 2, false},
      {"o", model->hidden, model->hidden, 3, 1, false}, {"gate,up", model->ffn, model->hidden, 4, 2, false},
      {"down", model->hidden, model->ffn, 6, 1, false}, {"lm_head", model->vocabulary, model->hidden, 0, 1, true}};
  struct sums sums[TOKENS_MAX] = {{0}};
  struct legend legend = {.count = 0};
  char title[128];
  snprintf(title, sizeof(title), "%s (%s), a step of one rank", model->name, model->help);
  print_title(title, config, &policy->device);
  printf("%-15s", "tokens");
  for (int i = 0; i < count; i++)
    printf(" %8lld", (long long)tokens[i]);
  putchar('\n');
  for (size_t i = 0; i < COUNT(linears); i++)
    print_linear(policy, &linears[i], model, tokens, count, sums, &legend);
  printf("%-15s", "converted FLOPs");
  for (int i = 0; i < count; i++)
    printf(" %6.1f %%", 100 * sums[i].converted_flops / sums[i].flops);
  printf("\n%-15s", "all GEMMs");
  for (int i = 0; i < count; i++)
    printf(" %6.2f x", sums[i].native_ns / sums[i].planned_ns);
  putchar('\n');
  print_legend(&legend);
}

/* ---- a log */

/* The first of the library's own logs that has GEMMs, else of the node's. */
static const struct b200_log *choose_log(const char *folder, const struct b200_logs *logs) {
  const struct b200_log *chosen = NULL;
  for (size_t i = 0; i < logs->log_count; i++)
    if (logs->logs[i].gemm_count && (!chosen || (chosen->node && !logs->logs[i].node)))
      chosen = &logs->logs[i];
  if (!chosen)
    cmd_fail(B200_EXIT_UNAVAILABLE, "lint: '%s' has no log with GEMMs", folder);
  return chosen;
}

static uint32_t logged_cublaslt(const struct b200_log *log) {
  json_int_t version = json_integer_value(json_object_get(json_object_get(log->header, "versions"), "cublaslt"));
  return version > 0 && version < 10000000 ? (uint32_t)version : CUBLASLT_VERSION;
}

struct outcome {
  int64_t calls, flops;
};

/* GEMMs by plan and reason; what the log does not say of a call counts as the policy likes it. */
static void print_log(const struct b200_policy *policy, const struct b200_config *config, const struct b200_log *log) {
  struct outcome outcomes[B200_FORMAT_COUNT][B200_REASON_COUNT] = {{{0}}};
  struct sums sums = {0};
  int64_t unknown = 0, flops = 0;
  for (size_t i = 0; i < log->gemm_count; i++) {
    struct b200_facts facts;
    if (!shape_from_log(&log->gemms[i], &facts)) {
      unknown += log->gemms[i].calls;
      continue;
    }
    struct b200_plan plan = decide(policy, &facts, NULL);
    struct outcome *outcome = &outcomes[plan.format][plan.reason];
    outcome->calls = b200_add(outcome->calls, log->gemms[i].calls);
    outcome->flops = b200_add(outcome->flops, log->gemms[i].flops);
    flops = b200_add(flops, log->gemms[i].flops);
    add_plan(&sums, policy, &facts.gemm, &plan, (double)log->gemms[i].calls);
  }
  print_title("the GEMMs of one rank's log", config, &policy->device);
  printf("%-8s %-18s %14s %8s\n", "plan", "reason", "calls", "FLOPs");
  for (int format = 0; format < B200_FORMAT_COUNT; format++)
    for (int reason = 0; reason < B200_REASON_COUNT; reason++)
      if (outcomes[format][reason].calls)
        printf("%-8s %-18s %14lld %7.1f%%\n", b200_format_names[format], b200_reason_names[reason],
               (long long)outcomes[format][reason].calls,
               flops ? 100 * (double)outcomes[format][reason].flops / (double)flops : 0);
  if (unknown)
    printf("%lld calls are of a kind that this version does not know\n", (long long)unknown);
  if (sums.planned_ns > 0)
    printf("all GEMMs %.2f times as fast by the cost model\n", sums.native_ns / sums.planned_ns);
}

/* ---- the verb */

static void check_arguments(const struct arguments *arguments) {
  cmd_folder_check(&arguments->folder, "lint", false);
  if (arguments->tokens && !arguments->model)
    cmd_fail(B200_EXIT_USAGE, "lint: --tokens goes with --model; see b200opt lint --help");
}

static struct b200_device choose_device(const struct arguments *arguments, const struct b200_log *log) {
  struct b200_device device;
  if (arguments->gpu && !shape_device(arguments->gpu, CUBLASLT_VERSION, &device))
    cmd_fail(B200_EXIT_USAGE, "lint: no GPU '%s' is known (accepted: %s)", arguments->gpu, shape_gpus);
  if (!arguments->gpu && !(log && shape_device(log->gpu, logged_cublaslt(log), &device)))
    shape_device("b200", CUBLASLT_VERSION, &device);
  return device;
}

int cmd_lint(int argc, char **argv) {
  static const struct argp argp = {
      .options = options, .parser = parse, .args_doc = "[LOGDIR]", .doc = doc, .children = cmd_common};
  static struct b200_config config;
  static struct b200_policy policy;
  struct arguments arguments = {0};
  struct b200_logs logs = {0};
  struct b200_facts facts = {0};
  int64_t tokens[TOKENS_MAX];
  cmd_parse(&argp, argc, argv, 0, &arguments);
  check_arguments(&arguments);
  const char *folder = arguments.folder.path;
  if (folder)
    cmd_logs_read("lint", folder, &logs);
  const struct b200_log *log = folder ? choose_log(folder, &logs) : NULL;
  const struct model *model = arguments.model ? find_model(arguments.model) : NULL;
  int token_count = parse_tokens(arguments.tokens, tokens);
  if (arguments.shape)
    facts = parse_shape(arguments.shape);
  struct b200_device device = choose_device(&arguments, log);
  b200_config_load(&config);
  bool right = check_environment(&config, &device, &policy);
  right = check_settings() && right;
  if (arguments.shape)
    print_shape(&policy, &facts, &config);
  if (model)
    print_model(&policy, &config, model, tokens, token_count);
  if (log)
    print_log(&policy, &config, log);
  b200_logs_free(&logs);
  if (fflush(stdout) != 0)
    cmd_fail(B200_EXIT_UNAVAILABLE, "lint: cannot write");
  return right ? B200_EXIT_OK : B200_EXIT_FINDING;
}
