/* SPDX-License-Identifier: Apache-2.0 */
__attribute__((visibility("default"))) const char *chain_name(void);
const char *chain_name(void) {
  return "b";
}
