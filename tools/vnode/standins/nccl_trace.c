/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's part of a line of the call trace: types, operators and roots of collectives, and whether they work in place. */
#include <stdio.h>
#include <string.h>

#include "hook.h"
#include "nccl_internal.h"
#include "nccl_reduce.h"

/* Slots: 0 is what is sent, 1 what is received, 2 the count, but for those with one buffer. */
static const struct slots {
  const char *function;
  unsigned type, op, root, comm; /* 0: there is none */
  enum { NO_PLACE, SAME, OWN_PART } place;
} functions[] = {
    {"ncclAllReduce", 3, 4, 0, 5, SAME},         {"ncclAllGather", 3, 0, 0, 4, OWN_PART},
    {"ncclReduceScatter", 3, 4, 0, 5, NO_PLACE}, {"ncclBroadcast", 3, 0, 4, 5, SAME},
    {"ncclBcast", 2, 0, 3, 4, NO_PLACE},         {"ncclReduce", 3, 4, 5, 6, SAME},
    {"ncclAlltoAll", 3, 0, 0, 4, NO_PLACE},      {"ncclGather", 3, 0, 4, 5, NO_PLACE},
    {"ncclScatter", 3, 0, 4, 5, NO_PLACE},       {"ncclSend", 2, 0, 0, 4, NO_PLACE},
    {"ncclRecv", 2, 0, 0, 4, NO_PLACE},
};

static bool in_place(const struct slots *at, const struct vnode_call *call, size_t element_bytes) {
  const struct ncclComm *comm = vnode_call_pointer(call, at->comm);
  size_t offset = at->place == OWN_PART ? (size_t)comm->rank * vnode_call_slot(call, 2) * element_bytes : 0;
  return vnode_call_slot(call, 0) == vnode_call_slot(call, 1) + offset;
}

static void describe(const struct slots *at, const struct vnode_call *call, char *text, size_t text_bytes) {
  ncclDataType_t type = (ncclDataType_t)vnode_call_slot(call, at->type);
  size_t element_bytes = reduce_type_bytes(type), used = 0;
  used = (size_t)snprintf(text, text_bytes, "%s", element_bytes ? reduce_type_name(type) : "other");
  if (at->op)
    used += (size_t)snprintf(text + used, text_bytes - used, " op=%d", (int)vnode_call_slot(call, at->op));
  if (at->root)
    used += (size_t)snprintf(text + used, text_bytes - used, " root=%d", (int)vnode_call_slot(call, at->root));
  if (at->place != NO_PLACE && vnode_call_slot(call, at->comm))
    snprintf(text + used, text_bytes - used, " inplace=%d", in_place(at, call, element_bytes));
}

void vnode_standin_describe(const char *function, const struct vnode_call *call, char *text, size_t text_bytes) {
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    if (!strcmp(functions[i].function, function))
      describe(&functions[i], call, text, text_bytes);
}
