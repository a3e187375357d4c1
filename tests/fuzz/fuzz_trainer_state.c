/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/compare.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  compare_form_of((const char *)data, size);
  check_decoder(compare_decode_trainer_state, (const char *)data, size, NULL);
  check_decoder(compare_decode_trainer_state, (const char *)data, size, "eval_loss");
  return 0;
}
