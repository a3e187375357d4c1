/* SPDX-License-Identifier: Apache-2.0 */
#include "interpose/timing/kinds.h"

#include "policy/call.h"

static struct b200_kind *place_of(struct b200_kinds *kinds, const struct b200_kind *more) {
  for (unsigned i = 0; i < kinds->count; i++) {
    struct b200_kind *kind = &kinds->kinds[i];
    if (kind->op == more->op && kind->dtype == more->dtype && kind->nranks == more->nranks)
      return kind;
  }
  if (kinds->count < B200_KINDS_MAX)
    kinds->kinds[kinds->count++] = (struct b200_kind){.op = more->op, .dtype = more->dtype, .nranks = more->nranks};
  else
    kinds->kinds[B200_KINDS_MAX - 1].op = B200_COLL_COUNT;
  return &kinds->kinds[kinds->count - 1];
}

void b200_kinds_add(struct b200_kinds *kinds, const struct b200_kind *more) {
  struct b200_kind *kind = place_of(kinds, more);
  kind->calls += more->calls;
  kind->bytes += more->bytes;
  kind->dur_ns += more->dur_ns;
  kind->blocked_ns += more->blocked_ns;
  kind->queued_ns += more->queued_ns;
}

void b200_kinds_flush(struct b200_kinds *kinds, bool (*visit)(void *context, const struct b200_kind *kind), void *context) {
  for (unsigned i = 0; i < kinds->count; i++) {
    struct b200_kind *kind = &kinds->kinds[i];
    if (kind->calls > 0 && visit(context, kind))
      *kind = (struct b200_kind){.op = kind->op, .dtype = kind->dtype, .nranks = kind->nranks};
  }
}
