/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph.h"
#include "model.h"

CUresult vnode_cuda_status(enum vnode_status status) {
  switch (status) {
  case VNODE_OK:
    return CUDA_SUCCESS;
  case VNODE_INVALID_VALUE:
  case VNODE_NOT_FOUND:
    return CUDA_ERROR_INVALID_VALUE;
  case VNODE_NO_MEMORY:
    return CUDA_ERROR_OUT_OF_MEMORY;
  case VNODE_NOT_INITIALIZED:
    return CUDA_ERROR_NOT_INITIALIZED;
  case VNODE_SYSTEM:
    return CUDA_ERROR_OPERATING_SYSTEM;
  default: /* the engine's other numbers are CUDA's */
    return (CUresult)status;
  }
}

struct error_row {
  int code;
  const char *runtime, *driver, *text;
};

static const struct error_row errors[] = {
#define VNODE_ERROR(error_code, runtime_name, driver_name, error_text)                                                      \
  {.code = error_code, .runtime = runtime_name, .driver = driver_name, .text = error_text},
#include "errors.def"
#undef VNODE_ERROR
};

static const struct error_row *error_of(int code, bool runtime) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code)
      return (runtime ? errors[i].runtime : errors[i].driver) ? &errors[i] : NULL;
  return NULL;
}

const char *vnode_error_name(int code, bool runtime) {
  const struct error_row *row = error_of(code, runtime);
  return !row ? NULL : runtime ? row->runtime : row->driver;
}

const char *vnode_error_text(int code, bool runtime) {
  const struct error_row *row = error_of(code, runtime);
  return row ? row->text : NULL;
}

bool vnode_attribute(int attribute, int device, int *value) {
  const struct vnode_gpu *gpu = vnode_gpu();
  if (attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    return false;
  switch (attribute) {
#define VNODE_ATTRIBUTE(attribute_name, attribute_value)                                                                    \
  case CU_DEVICE_ATTRIBUTE_##attribute_name:                                                                                \
    *value = attribute_value;                                                                                               \
    break;
#include "attributes.def"
#undef VNODE_ATTRIBUTE
  default:
    *value = 0;
  }
  return true;
}

void vnode_pci_bus_id(int device, char *text, size_t text_bytes) {
  int bus = 0;
  vnode_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device, &bus);
  snprintf(text, text_bytes, "0000:%02X:00.0", (unsigned)bus);
}

int vnode_device_of_pci_bus_id(const char *text) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 || domain || slot || function)
    return -1;
  for (int device = 0; device < vnode_config()->device_count; device++) {
    int own = 0;
    vnode_attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device, &own);
    if ((unsigned)own == bus)
      return device;
  }
  return -1;
}

void vnode_uuid(int device, unsigned char uuid[16]) {
  static const unsigned char pattern[16] = {0xb2, 0x00, 0x0b, 0x70, 0x76, 0x6e, 0x40, 0x64,
                                            0x80, 0x65, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  memcpy(uuid, pattern, 16);
  uuid[15] = (unsigned char)(device + 1);
}

/* ------------------------------------------------------------------------------------------- copies and fills */

enum place { PLACE_PAGEABLE, PLACE_PINNED, PLACE_DEVICE };

/* One side of a copy. */
struct side {
  enum place place;
  int device;
  bool managed; /* PLACE_DEVICE */
};

static struct side side_of(const void *address) {
  struct vnode_memory_info info;
  if (!vnode_memory_query(address, &info))
    return (struct side){.place = PLACE_PAGEABLE};
  bool host = info.kind == VNODE_MEMORY_HOST || info.kind == VNODE_MEMORY_REGISTERED;
  return (struct side){
      .place = host ? PLACE_PINNED : PLACE_DEVICE, .device = info.device, .managed = info.kind == VNODE_MEMORY_MANAGED};
}

static enum vnode_copy_kind copy_kind(const struct side *to, const struct side *from) {
  if (to->place == PLACE_DEVICE && from->place == PLACE_DEVICE)
    return to->device == from->device ? VNODE_COPY_WITHIN_DEVICE : VNODE_COPY_BETWEEN_DEVICES;
  return to->place == PLACE_DEVICE     ? VNODE_COPY_HOST_TO_DEVICE
         : from->place == PLACE_DEVICE ? VNODE_COPY_DEVICE_TO_HOST
                                       : VNODE_COPY_HOST;
}

/* A copy with what it owns. */
struct copy_args {
  struct vnode_copy copy;
  void *staged; /* NULL, or a packed copy of the source as it was at the submission */
};

static void run_copy(void *args) {
  const struct copy_args *own = args;
  const struct vnode_copy *copy = &own->copy;
  const char *from = own->staged ? own->staged : copy->from;
  size_t from_pitch = own->staged ? copy->row_bytes : copy->from_pitch;
  for (size_t row = 0; row < copy->rows; row++)
    memmove((char *)copy->to + row * copy->to_pitch, from + row * from_pitch, copy->row_bytes);
}

static void drop_copy(void *args) {
  free(((struct copy_args *)args)->staged);
}

static void *stage(const struct vnode_copy *copy) {
  char *staged = malloc(copy->row_bytes * copy->rows);
  for (size_t row = 0; staged && row < copy->rows; row++)
    memcpy(staged + row * copy->row_bytes, (const char *)copy->from + row * copy->from_pitch, copy->row_bytes);
  return staged;
}

static enum vnode_status submit_copy(struct vnode_stream *stream, const struct copy_args *args, const struct side *to,
                                     const struct side *from, int64_t duration_ns) {
  const struct vnode_copy *copy = &args->copy;
  struct vnode_access accesses[2];
  struct vnode_op op = {.name = "copy",
                        .work = run_copy,
                        .args = args,
                        .args_bytes = sizeof *args,
                        .drop = args->staged ? drop_copy : NULL,
                        .accesses = accesses,
                        .duration_ns = duration_ns,
                        .flags = VNODE_OP_COPY};
  if (from->place != PLACE_PAGEABLE)
    accesses[op.access_count++] = (struct vnode_access){copy->from, copy->row_bytes, copy->rows, copy->from_pitch, false};
  if (to->place != PLACE_PAGEABLE)
    accesses[op.access_count++] = (struct vnode_access){copy->to, copy->row_bytes, copy->rows, copy->to_pitch, true};
  return vnode_op_submit(stream, &op);
}

/* Does the call return only when the copy is complete? `staged`: its source has been read. */
static bool copy_waits(const struct side *to, const struct side *from, bool async, bool staged) {
  switch (copy_kind(to, from)) {
  case VNODE_COPY_HOST:
    return true;
  case VNODE_COPY_HOST_TO_DEVICE:
    return from->place == PLACE_PAGEABLE ? !staged : !async;
  case VNODE_COPY_DEVICE_TO_HOST:
    return to->place == PLACE_PAGEABLE || !async;
  default:
    return !async && to->managed; /* the host may look there at once */
  }
}

enum vnode_status vnode_copy_submit(struct vnode_stream *stream, const struct vnode_copy *copy, bool async) {
  static const size_t staged_max_bytes = 64 << 20; /* beyond, the host waits: CUDA allows either */
  static const size_t free_bytes = 64 << 10;       /* up to here the host hands the data over with the command */
  struct side to = side_of(copy->to), from = side_of(copy->from);
  struct copy_args args = {.copy = *copy};
  size_t bytes = copy->row_bytes * copy->rows;
  int64_t duration_ns =
      vnode_model_copy_ns(copy_kind(&to, &from), bytes, to.place != PLACE_PAGEABLE && from.place != PLACE_PAGEABLE);
  if (vnode_stream_is_capturing(stream))
    return submit_copy(stream, &args, &to, &from, duration_ns);

  bool pageable_upload = from.place == PLACE_PAGEABLE && to.place == PLACE_DEVICE;
  bool read_at_once = pageable_upload && bytes <= staged_max_bytes;
  enum vnode_status status = async ? VNODE_OK : vnode_capture_check_stream(stream);
  if (!status && pageable_upload && !async)
    status = vnode_stream_synchronize(stream);
  if (status)
    return status;
  if (read_at_once && vnode_stream_is_late(stream)) {
    args.staged = stage(copy);
    read_at_once = args.staged != NULL;
  }
  status = submit_copy(stream, &args, &to, &from, duration_ns);
  if (!status && copy_waits(&to, &from, async, read_at_once))
    return vnode_stream_synchronize(stream);
  if (!status && pageable_upload && bytes > free_bytes)
    vnode_host_charge(duration_ns);
  return status;
}

static void run_fill(void *args) {
  const struct vnode_fill *fill = args;
  for (size_t row = 0; row < fill->rows; row++) {
    char *to = (char *)fill->to + row * fill->pitch;
    if (fill->element_bytes == 1)
      memset(to, (int)(fill->value & 0xff), fill->row_elements);
    else
      for (size_t i = 0; i < fill->row_elements; i++)
        memcpy(to + i * fill->element_bytes, &fill->value, fill->element_bytes); /* little endian */
  }
}

enum vnode_status vnode_fill_submit(struct vnode_stream *stream, const struct vnode_fill *fill, bool async) {
  size_t row_bytes = fill->row_elements * fill->element_bytes;
  struct vnode_access access = {fill->to, row_bytes, fill->rows, fill->pitch, true};
  struct vnode_op op = {.name = "fill",
                        .work = run_fill,
                        .args = fill,
                        .args_bytes = sizeof *fill,
                        .accesses = &access,
                        .access_count = 1,
                        .duration_ns = vnode_model_kernel_ns(row_bytes * fill->rows),
                        .flags = VNODE_OP_FILL};
  enum vnode_status status = async ? VNODE_OK : vnode_capture_check_stream(stream);
  if (!status)
    status = vnode_op_submit(stream, &op);
  struct side to = side_of(fill->to);
  bool waits = !async && (to.place == PLACE_PINNED || to.managed);
  return status || !waits ? status : vnode_stream_synchronize(stream);
}

/* ------------------------------------------------------------------------------------------- addresses */

bool vnode_is_known(const void *address, size_t bytes) {
  const char *at = address, *end = at + bytes;
  struct vnode_memory_info info;
  do { /* neighbouring mappings of one reserved range are one range to a copy */
    if (!vnode_memory_query(at, &info))
      return false;
    at = (const char *)info.base + info.bytes;
  } while (at < end);
  return true;
}

bool vnode_is_within(const void *address, size_t bytes) {
  return !vnode_memory_query(address, NULL) || vnode_is_known(address, bytes);
}

static const unsigned char event_magic[8] = "b2evnt1";

void vnode_ipc_event_export(unsigned char token[64]) {
  memset(token, 0, 64);
  memcpy(token, event_magic, sizeof event_magic);
}

bool vnode_ipc_event_is(const unsigned char token[64]) {
  return !memcmp(token, event_magic, sizeof event_magic);
}
