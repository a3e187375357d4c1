/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/record/reader.h"
#include "policy/config.h"
#include "tools/cmd.h"
#include "tools/launch.h"
#include "tools/python.h"
#include "tools/vnode/core/core.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char doc[] =
    "Run a job on a virtual node of NVIDIA GPUs (B200; others: B200OPT_VNODE_GPU): no GPU is needed.\n"
    "\n"
    "Stand-ins for CUDA, cuBLAS and NCCL are preloaded behind libb200opt.so, so that the unmodified PyTorch "
    "that COMMAND uses, of CUDA 12 or 13, trains with real numbers on the CPU. Times are those of this machine, not of a "
    "GPU."
    "\v"
    "WHAT IS SET UP\n"
    "  PyTorch's kernels run by its own CPU kernels; the layer that does so is\n"
    "  compiled against the installed PyTorch the first time (a minute on an\n"
    "  idle machine; needs g++).\n"
    "  TORCHDYNAMO_DISABLE=1: compiled Triton kernels cannot run without a GPU.\n"
    "  OMP_NUM_THREADS=1, MKL_NUM_THREADS=1, MKL_CBWR=AUTO: equal runs give equal\n"
    "  numbers. Each of these variables keeps a value that it has already.\n"
    "\n"
    "ENVIRONMENT\n"
    "  As for b200opt run, and B200OPT_VNODE_*; see b200opt doctor --env.\n"
    "\n"
    "EXIT STATUS\n"
    "  that of COMMAND; before it starts:\n"
    "  2    wrong arguments, or a wrong variable with B200OPT_STRICT=1\n"
    "  3    the library, a stand-in or a CUDA build of PyTorch is missing, or the\n"
    "       layer does not compile\n"
    "  126  COMMAND cannot be executed\n"
    "  127  COMMAND is not found\n"
    "\n"
    "EXAMPLES\n"
    "  b200opt dryrun --gpus 2 --log logs -- torchrun --nproc-per-node 2 train.py\n"
    "  b200opt dryrun --bare --log bare -- python train.py > bare/job.out\n"
    "  b200opt report logs --against bare";

static const struct argp_option options[] = {
    {"gpus", 'g', "N", 0, "GPUs of the node, 1 to 8 (default: B200OPT_VNODE_GPUS, 8)", 0},
    {"log", 'l', "DIR", 0, "Folder for the library's logs and the node's own count (default: B200OPT_LOG_DIR)", 0},
    {"session", 's', "NAME", 0, "Name of the node: jobs with the same name share it (default: a new one)", 0},
    {"bare", 'b', NULL, 0, "Leave libb200opt.so out; only the node counts", 0},
    {0},
};

struct dryrun {
  struct launch launch;
  const char *gpus, *log, *session;
  bool bare;
};

static error_t parse(int key, char *value, struct argp_state *state) {
  struct dryrun *dryrun = state->input;
  switch (key) {
  case 'g':
    dryrun->gpus = value;
    return 0;
  case 'l':
    dryrun->log = value;
    return 0;
  case 's':
    dryrun->session = value;
    return 0;
  case 'b':
    dryrun->bare = true;
    return 0;
  case ARGP_KEY_ARG:
    return launch_take_word(&dryrun->launch, state, value);
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* ---- the node */

enum { STAND_IN_COUNT = 7 };

/* Stand-ins for the CUDA that a PyTorch is built for, in the order of LD_PRELOAD, behind libb200opt.so. Those without a
   version in their names serve every CUDA. */
static const struct node_libraries {
  int cuda_major;
  const char *names[STAND_IN_COUNT];
} node_libraries[] = {
    {13,
     {"libb200vnode.so", "libcudart.so.13", "libcuda.so.1", "libcublasLt.so.13", "libcublas.so.13", "libnccl.so.2",
      "libnvidia-ml.so.1"}},
    {12,
     {"libb200vnode.so", "cuda12/libcudart.so.12", "libcuda.so.1", "cuda12/libcublasLt.so.12", "cuda12/libcublas.so.12",
      "libnccl.so.2", "libnvidia-ml.so.1"}},
};

static char *find_node(void) {
  char *folder = launch_find_beside("vnode", "../lib/b200opt/vnode");
  if (!folder)
    cmd_fail(B200_EXIT_UNAVAILABLE, "the virtual node is not installed beside b200opt (no vnode folder)");
  return folder;
}

/* NULL: there are none for that CUDA ("12.8"; "" for a CPU build). */
static const struct node_libraries *libraries_for(const char *cuda) {
  for (size_t i = 0; i < sizeof(node_libraries) / sizeof(node_libraries[0]); i++)
    if (atoi(cuda) == node_libraries[i].cuda_major)
      return &node_libraries[i];
  return NULL;
}

static void check_stand_ins(const char *folder, const struct node_libraries *libraries) {
  for (size_t i = 0; i < STAND_IN_COUNT; i++) {
    char *path = b200_format("%s/%s", folder, libraries->names[i]);
    if (access(path, R_OK) != 0)
      cmd_fail(B200_EXIT_UNAVAILABLE, "%s: %s; the virtual node is incomplete (tools/setup --cuda %d builds it)", path,
               strerror(errno), libraries->cuda_major);
    free(path);
  }
}

static void preload_all(const char *folder, const struct node_libraries *stand_ins, bool bare) {
  const char *libraries[STAND_IN_COUNT + 2] = {0};
  size_t count = 0;
  if (!bare)
    libraries[count++] = launch_find_library();
  for (size_t i = 0; i < STAND_IN_COUNT; i++)
    libraries[count++] = b200_format("%s/%s", folder, stand_ins->names[i]);
  launch_preload(libraries);
  for (size_t i = 0; i < count; i++)
    free((char *)libraries[i]);
}

static const struct b200_env_row *node_row(const char *name) {
  size_t count, i = 0;
  const struct b200_env_row *rows = b200_env_rows(&count);
  while (strcmp(rows[i].name, name) != 0)
    i++;
  return &rows[i];
}

static void set_node_variables(const struct dryrun *dryrun) {
  const struct b200_env_row *gpus = node_row("B200OPT_VNODE_GPUS");
  if (dryrun->gpus && !b200_env_row_accepts(gpus, dryrun->gpus))
    cmd_fail(B200_EXIT_USAGE, "dryrun: --gpus: '%s' is not accepted (accepted: %s)", dryrun->gpus, gpus->accepted);
  if (dryrun->gpus)
    setenv(gpus->name, dryrun->gpus, 1);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char *session = b200_format("dry-%ld-%llx", (long)getpid(), (unsigned long long)now.tv_sec);
  setenv("B200OPT_VNODE_SESSION", dryrun->session ? dryrun->session : session, 1);
  free(session);
}

/* mkdir -p. */
static void make_folder(const char *path) {
  char *partial = b200_format("%s", path);
  for (char *at = partial + 1;; at++) {
    if (*at != '/' && *at != '\0')
      continue;
    char kept = *at;
    *at = '\0';
    if (mkdir(partial, 0777) != 0 && errno != EEXIST)
      cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: cannot make the folder '%s': %s", partial, strerror(errno));
    *at = kept;
    if (!kept)
      break;
  }
  free(partial);
}

/* The job may change its folder, so the paths it gets are absolute. */
static void set_log_folders(const struct dryrun *dryrun) {
  static struct b200_config config;
  char folder[PATH_MAX], resolved[PATH_MAX];
  b200_config_load(&config);
  if (dryrun->log)
    snprintf(folder, sizeof(folder), "%s", dryrun->log);
  else
    b200_config_log_dir(&config, folder, sizeof(folder));
  make_folder(folder);
  if (!realpath(folder, resolved))
    cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: cannot use the folder '%s': %s", folder, strerror(errno));
  setenv("B200OPT_LOG_DIR", resolved, 1);
  setenv("B200OPT_VNODE_LOG_DIR", resolved, 1);
}

/* ---- PyTorch */

static char *find_python(const struct dryrun *dryrun, struct python_torch *torch) {
  char *python = python_of_command(dryrun->launch.command[0]);
  if (!python)
    cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: no python3 in PATH, and '%s' names none", dryrun->launch.command[0]);
  if (!python_find_torch(python, torch))
    cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: %s has no torch; the virtual node needs a CUDA build of PyTorch", python);
  if (!torch->cuda[0])
    cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: torch %s of %s is a CPU build; the virtual node needs one for CUDA 12 or 13",
             torch->version, python);
  if (!libraries_for(torch->cuda))
    cmd_fail(B200_EXIT_UNAVAILABLE,
             "dryrun: torch %s of %s is built for CUDA %s; the virtual node needs one for CUDA 12 or 13", torch->version,
             python, torch->cuda);
  return python;
}

/* Where compiled layers are kept: beside the stand-ins, else in the user's cache. */
static char *layer_folder(const char *stand_in_folder) {
  const char *cache = getenv("XDG_CACHE_HOME");
  const char *home = getenv("HOME");
  if (access(stand_in_folder, W_OK) == 0)
    return b200_format("%s/aten", stand_in_folder);
  if (cache && *cache)
    return b200_format("%s/b200opt/aten", cache);
  if (!home || !*home)
    cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: no folder to compile in: %s is read-only, XDG_CACHE_HOME and HOME are unset",
             stand_in_folder);
  return b200_format("%s/.cache/b200opt/aten", home);
}

/* Runs the script with its output on our stderr. True when it succeeded. */
static bool run_script(char *const *arguments) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execv(arguments[0], arguments);
    _exit(B200_EXIT_NOT_FOUND);
  }
  if (child < 0 || waitpid(child, &status, 0) < 0)
    return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void build_layer(const char *stand_in_folder, char *python, const struct python_torch *torch) {
  if (getenv("B200OPT_VNODE_ATEN_DIR"))
    return;
  char *script = launch_find_beside("../share/b200opt/aten/build.sh", "../share/b200opt/aten/build.sh");
  if (!script)
    script = b200_format("%s", B200_ATEN_SOURCE "/build.sh");
  char *core = b200_format("%.*s/../core", (int)(strrchr(script, '/') - script), script);
  char *folder = layer_folder(stand_in_folder);
  make_folder(folder);
  if (!run_script((char *[]){script, python, folder, (char *)stand_in_folder, core, NULL}))
    cmd_fail(B200_EXIT_UNAVAILABLE, "dryrun: the layer for torch %s was not made", torch->version);
  setenv("B200OPT_VNODE_ATEN_DIR", folder, 1);
  free(folder);
  free(core);
  free(script);
}

/* Two runs must give equal numbers: one thread per rank, and MKL's reproducible mode, whose results do not depend on the
   alignment of buffers. AUTO keeps the fastest kernels of the processor; COMPATIBLE, its alternative, takes SSE2's. */
static void set_numerics(void) {
  launch_default("OMP_NUM_THREADS", "1");
  launch_default("MKL_NUM_THREADS", "1");
  launch_default("MKL_CBWR", "AUTO");
  if (launch_default("TORCHDYNAMO_DISABLE", "1"))
    cmd_say("torch.compile is off: the Triton kernels it makes cannot run on a virtual node (TORCHDYNAMO_DISABLE=1)");
}

static const char *node_value(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : node_row(name)->default_value;
}

static const char *gpu_name(void) {
  static const struct {
    const char *key;
    struct vnode_gpu gpu;
  } models[] = {
#define VNODE_GPU(gpu_key, ...) {.key = #gpu_key, .gpu = {__VA_ARGS__}},
#include "tools/vnode/core/gpus.def"
#undef VNODE_GPU
  };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    if (!strcmp(models[i].key, node_value("B200OPT_VNODE_GPU")))
      return models[i].gpu.name;
  return models[0].gpu.name; /* a wrong value: the node warns and takes the default */
}

static void say_node(bool bare) {
  cmd_say("virtual node: %s x %s, session %s, %s; times are this machine's", node_value("B200OPT_VNODE_GPUS"), gpu_name(),
          getenv("B200OPT_VNODE_SESSION"), bare ? "without libb200opt.so" : "with libb200opt.so");
  cmd_say("OMP_NUM_THREADS=%s MKL_NUM_THREADS=%s MKL_CBWR=%s, logs in %s", getenv("OMP_NUM_THREADS"),
          getenv("MKL_NUM_THREADS"), getenv("MKL_CBWR"), getenv("B200OPT_LOG_DIR"));
}

int cmd_dryrun(int argc, char **argv) {
  static const struct argp argp = {.options = options,
                                   .parser = parse,
                                   .args_doc = "[NAME=VALUE...] -- COMMAND [ARGUMENT...]",
                                   .doc = doc,
                                   .children = cmd_common};
  struct dryrun dryrun = {0};
  struct python_torch torch;
  cmd_parse(&argp, argc, argv, ARGP_IN_ORDER, &dryrun);
  launch_need_command(&dryrun.launch, "dryrun");
  set_node_variables(&dryrun);
  launch_check_environment();
  char *folder = find_node();
  char *python = find_python(&dryrun, &torch);
  const struct node_libraries *libraries = libraries_for(torch.cuda);
  check_stand_ins(folder, libraries);
  set_log_folders(&dryrun);
  build_layer(folder, python, &torch);
  set_numerics();
  say_node(dryrun.bare);
  preload_all(folder, libraries, dryrun.bare);
  free(python);
  free(folder);
  launch_exec(&dryrun.launch);
}
