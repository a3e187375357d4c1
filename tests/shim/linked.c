/* SPDX-License-Identifier: Apache-2.0 */
/* Linked against the vendor libraries, the driver included. */
#include <cuda.h>
#include <errno.h>

#include "sequence.h"

int main(void) {
  CUdeviceptr block = 0;
  sequence_run();
  errno = 4711;
  int status = (int)cuMemAlloc_v2(&block, 6 << 20) + (int)cuMemFree_v2(block);
  printf("driver %d, errno %d\n", status, errno);
  return 7;
}
