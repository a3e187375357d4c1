/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of one arm of a comparison: its runs, each with its loss curve, its step times and its circumstances, read
 * from whatever a job left behind. The form of a file is found from its content, never from its name:
 *
 *   logs of b200opt   a folder (or one file) of *.jsonl and *.out, as the shim and the virtual node write them
 *   TensorBoard       event files; all in one folder are one run
 *   trainer_state     Hugging Face's trainer_state.json
 *   CSV               a header row with names of step and loss; separated by , ; or tab
 *   output            what a job printed: every form that policy/loss_scan.h knows
 *
 * Of a folder the first of these forms counts in which a loss or a step is found; what else lies there is left alone. In a
 * folder of logs, printed output serves where the logs have no losses.
 *
 * Which files are one run: folders run-1, run-2, … below the path are a run each, with all that lies in them (so does
 * `b200opt ab` write them); else logs with the same name of the run, the event files of a folder, the trainer states of a
 * folder and its checkpoint-* folders, the outputs of one torchrun, and else each file by itself. A run that starts later
 * than its first steps and continues another one (a resume into a new file or folder) becomes part of that one.
 *
 * Curves: points are sorted by step, one per step. Of a step that was done again after a resume the later value counts. A
 * rank's own loss is that of its share of the batch: when several ranks give a loss for a step, the point is their mean, and
 * steps that not all of them have are left out, unless that would lose more than a tenth of the steps; then the lowest
 * rank's curve stands alone. Values of one file that is shared by ranks without labels count as ranks' when the same steps
 * come again all the time rather than once.
 *
 * Ownership: everything belongs to the struct until compare_arm_free(). Allocates; ends the process with a message when
 * memory runs out, as the reader does. No global state: threads may read different arms.
 */
#ifndef B200_COMPARE_RUN_H
#define B200_COMPARE_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "interpose/record/reader.h"

enum compare_source {
  COMPARE_LOGS,
  COMPARE_TENSORBOARD,
  COMPARE_TRAINER_STATE,
  COMPARE_CSV,
  COMPARE_OUTPUT,
  COMPARE_SOURCE_COUNT
};

extern const char *const compare_source_names[COMPARE_SOURCE_COUNT]; /* "b200opt", "tensorboard", … */

/* A point of the loss curve. */
struct compare_point {
  int64_t step;
  double loss;         /* may be NaN or infinite */
  double grad_norm;    /* NAN: not known */
  double tokens_per_s; /* of the whole job as it printed it; 0: not known */
  double t_s;          /* seconds of running since the run began, pauses before a resume left out; NAN: not known */
};

/* A training step. */
struct compare_step {
  int64_t step;     /* ordinal of the detected step from 0, counted on over a resume; not the number that the job prints */
  double host_s;    /* until the next step began, on the host: of the rank that took longest there */
  double device_s;  /* on the device: of the rank that took longest there, as what follows; NAN in steps not timed */
  double gemm_s;    /* GEMMs, union; NAN when not timed, for they are only in some steps */
  double blocked_s; /* compute streams blocked by collectives; NAN when not timed */
  double comm_s;    /* collectives, union; NAN when not timed */
  double starved_s; /* the device had run out of work and waited for the host; NAN when not timed */
  bool first;       /* the first of its process: not an ordinary one */
  bool interrupted; /* evaluation, a checkpoint or the like came before it */
};

struct compare_run {
  char *name; /* of the folder, the log's run or the file, below the arm's path */
  enum compare_source source;
  enum compare_source loss_source; /* logs may leave the losses to the output */
  char *loss_name;                 /* column or tag that the losses are from; "" for printed ones */

  struct compare_point *points; /* by step, each once */
  size_t point_count;
  bool counted; /* steps of the points are, or may be, ordinals: a job that prints none has them counted */
  int decimals; /* digits after the point with which losses were printed, the most that was seen; -1: not printed */

  struct compare_step *steps; /* by ordinal; of logs only */
  size_t step_count;
  bool modelled;      /* device times are the virtual node's model; host times are then those of its emulation */
  double modelled_s;  /* the node's modelled time for the whole run; NAN without it */
  int64_t gemm_flops; /* of an ordinary step, one rank; 0: not known */
  double ended_s;     /* seconds of running, as in compare_point; NAN: not known */
  int resumes;        /* how often the run was continued */

  int64_t world;  /* WORLD_SIZE; -1: not known */
  int ranks;      /* whose logs there are; 0 without logs */
  int loss_ranks; /* of whose losses the points are the mean; 1 in the usual case */
  bool partial;   /* some log has no end: the process was killed or still runs */

  /* Object, of the lowest rank's newest header: "producer", "gpu", "host", "versions": {…}, "config": {NAME: "VALUE (what
     set it)"}, "nccl_env": {…}. Empty without logs. */
  json_t *facts;
  struct b200_logs logs; /* all that the logs say but steps, operations and GPU samples, which are freed; for tables */

  char **notes; /* what was odd, one line each */
  size_t note_count;
};

struct compare_arm {
  char *path;
  bool pooled;              /* several jobs' logs lie in it beside each other, and count as its runs */
  struct compare_run *runs; /* by name, run-2 before run-10 */
  size_t run_count;
  char **notes; /* what was left out, one line each */
  size_t note_count;
};

/* Reads what `path` holds. `tag` (may be NULL) names the tag or column with the loss. True: there is a run with a loss or a
   step. False: `*error` is one line that says what is wrong and is the caller's to free(). `out` is valid either way. */
bool compare_arm_read(const char *path, const char *tag, struct compare_arm *out, char **error);
void compare_arm_free(struct compare_arm *arm);

#endif
