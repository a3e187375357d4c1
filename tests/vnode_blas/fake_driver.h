/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake driver saw. */
#ifndef VNODE_BLAS_FAKE_DRIVER_H
#define VNODE_BLAS_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/vnode/core/core.h"

struct fake_driver {
  int allocations, frees;
  size_t bytes;
  enum vnode_owner owner; /* of the last allocation */
  bool refuse;            /* set by a test: no memory */
};

extern struct fake_driver fake_driver_state;

#endif
