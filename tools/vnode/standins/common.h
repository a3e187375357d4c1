/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime, driver and NVML stand-ins share; compiled into each. Thread-safe; nothing here keeps state. */
#ifndef VNODE_STANDINS_COMMON_H
#define VNODE_STANDINS_COMMON_H

#include <cuda.h>

#include "core.h"

/* The codes of both APIs agree wherever both have one, so one mapping serves cudaError_t, too. */
CUresult vnode_cuda_status(enum vnode_status status);

/* NULL for a code that the API does not have. */
const char *vnode_error_name(int code, bool runtime);
const char *vnode_error_text(int code, bool runtime);

/* pre: 0 <= device < device count. False: CUDA has no attribute of that number. */
bool vnode_attribute(int attribute, int device, int *value);

/* "0000:10:00.0"; a stable identity of a device, equal in all processes. */
void vnode_pci_bus_id(int device, char *text, size_t text_bytes);
/* Ordinal, or -1. */
int vnode_device_of_pci_bus_id(const char *text);
void vnode_uuid(int device, unsigned char uuid[16]);

/*
 * Copies and fills, in the stream's order, by the rules of the CUDA runtime API reference, "API synchronization behavior".
 * `async`: the call has Async in its name. Otherwise the host waits for the copy, but not for one between devices, and for a
 * pageable source only until it has been read.
 * A pageable source is read before the call returns and a pageable target is complete by then, asynchronous or not; pinned
 * memory is read and written when the copy runs. In a graph every copy reads and writes when the graph runs.
 * Pitches are ignored when rows is 1.
 */
struct vnode_copy {
  void *to;
  const void *from;
  size_t to_pitch, from_pitch, row_bytes, rows;
};
enum vnode_status vnode_copy_submit(struct vnode_stream *stream, const struct vnode_copy *copy, bool async);

struct vnode_fill {
  void *to;
  size_t pitch, row_elements, rows;
  unsigned value, element_bytes; /* 1, 2 or 4 */
};
enum vnode_status vnode_fill_submit(struct vnode_stream *stream, const struct vnode_fill *fill, bool async);

/* True when all of [address, address + bytes) is memory that CUDA knows: allocated, mapped, registered or opened. */
bool vnode_is_known(const void *address, size_t bytes);
/* True when the range starts outside all known memory, or is known as a whole: false for a copy that runs over an end. */
bool vnode_is_within(const void *address, size_t bytes);

/* Events between processes: their record waits until the work before it is complete, so the other side needs only a name to
   refuse what is no event of ours. */
void vnode_ipc_event_export(unsigned char token[64]);
bool vnode_ipc_event_is(const unsigned char token[64]);

#endif
