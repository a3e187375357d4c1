/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <stdio.h>
#include <string.h>

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

static void run_copy(void *args) {
  const struct vnode_copy *copy = args;
  for (size_t row = 0; row < copy->rows; row++)
    memmove((char *)copy->to + row * copy->to_pitch, (const char *)copy->from + row * copy->from_pitch, copy->row_bytes);
}

enum vnode_status vnode_copy_submit(struct vnode_stream *stream, const struct vnode_copy *copy) {
  return vnode_stream_submit(stream, "copy", run_copy, copy, sizeof *copy);
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

enum vnode_status vnode_fill_submit(struct vnode_stream *stream, const struct vnode_fill *fill) {
  return vnode_stream_submit(stream, "fill", run_fill, fill, sizeof *fill);
}

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
