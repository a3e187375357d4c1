/* SPDX-License-Identifier: Apache-2.0 */
/* What each module offers; found with dlsym by the program. Any module may free another one's block. Errors end the program.
 */
#ifndef B200_TEST_LEDGER_MODULE_H
#define B200_TEST_LEDGER_MODULE_H

#include <cuda.h>
#include <stddef.h>

enum block_kind {
  BLOCK_NONE,
  BLOCK_PLAIN,
  BLOCK_PITCHED,
  BLOCK_MANAGED,
  BLOCK_ORDERED,
  BLOCK_MAPPED,
  BLOCK_MAPPED_ONLY,
  BLOCK_RETAINED,
  BLOCK_KINDS
};

struct block {
  enum block_kind kind;
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
  size_t bytes; /* whole pages */
};

__attribute__((visibility("default"))) void module_alloc(enum block_kind kind, size_t bytes, struct block *out);
__attribute__((visibility("default"))) void module_free(struct block *block);

#endif
