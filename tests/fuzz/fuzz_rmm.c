/* SPDX-License-Identifier: Apache-2.0 */
/* Any line is one of RMM's log, which is printed again byte for byte, or gets one line of ASCII that says what is accepted.
 */
#include "tests/fuzz/fuzz.h"
#include "tools/replay/replay.h"
#include "tools/replay/rmm.h"

#include <stdlib.h>
#include <string.h>

static void must(bool true_) {
  if (!true_)
    abort();
}

static void check_row(const struct rmm_row *row, const char *line, size_t length) {
  char printed[RMM_LINE_MAX];
  rmm_row_print(row, printed);
  must(strlen(printed) == length + 1 && memcmp(printed, line, length) == 0 && printed[length] == '\n');
}

static void check_complaint(const char *wrong) {
  must(strstr(wrong, "(accepted: ") != NULL);
  for (const char *at = wrong; *at; at++)
    must(*at >= ' ' && *at <= '~');
}

static const unsigned events[RMM_ACTION_COUNT] = {REPLAY_MALLOC, REPLAY_FREE, REPLAY_REFUSED};

/* Every policy on a small device, line by line; what it holds is never less than what is live. */
static void replay_row(struct replay *replay, const struct rmm_row *row) {
  must(replay_feed(replay, &(struct replay_event){.what = events[row->action],
                                                  .owner = B200_OWNER_PYTORCH,
                                                  .key = row->pointer,
                                                  .bytes = row->size,
                                                  .stream = row->stream}));
  for (size_t i = 0; i < REPLAY_POLICY_COUNT; i++)
    must(replay_book(replay, i)->live <= replay_book(replay, i)->reserved &&
         replay_book(replay, i)->reserved <= replay_book(replay, i)->limit);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *line = (const char *)data, *end = line + size;
  struct replay *replay = replay_create(replay_policies, REPLAY_POLICY_COUNT, UINT64_C(100) << 20, NULL);
  while (line < end) {
    struct rmm_row row;
    const char *newline = memchr(line, '\n', (size_t)(end - line));
    size_t length = (size_t)((newline ? newline : end) - line);
    const char *wrong = rmm_row_parse(line, length, &row);
    if (wrong) {
      check_complaint(wrong);
    } else {
      check_row(&row, line, length);
      replay_row(replay, &row);
    }
    line += length + (newline != NULL);
  }
  replay_destroy(replay);
  return 0;
}
