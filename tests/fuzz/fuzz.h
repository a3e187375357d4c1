/* SPDX-License-Identifier: Apache-2.0 */
/* The entry of a fuzz target, as libFuzzer names it. Returns 0; a defect ends the process. */
#ifndef B200_FUZZ_H
#define B200_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
