/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes as an event file, and as events (each after a byte with its length) in records whose checksums are right. */
#include "tests/fuzz/compare.h"
#include "tests/fuzz/fuzz.h"

/* CRC-32C bit by bit, masked: written anew rather than shared, so that an error in one of them shows. */
static uint32_t checksum(const uint8_t *data, size_t size) {
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < size; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++)
      crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static void put(uint8_t *out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    out[i] = (uint8_t)(value >> 8 * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *file = malloc(size * 17 + 17);
  size_t used = 0;
  if (!file)
    abort();
  for (size_t i = 0; i < size;) {
    size_t length = data[i++];
    length = length < size - i ? length : size - i;
    put(file + used, length, 8);
    put(file + used + 8, checksum(file + used, 8), 4);
    memcpy(file + used + 12, data + i, length);
    put(file + used + 12 + length, checksum(data + i, length), 4);
    used += 16 + length;
    i += length;
  }
  if (used && compare_form_of((const char *)file, used) != FORM_TENSORBOARD)
    abort();
  check_decoder(compare_decode_tensorboard, (const char *)file, used, NULL);
  check_decoder(compare_decode_tensorboard, (const char *)file, used, "a");
  check_decoder(compare_decode_tensorboard, (const char *)data, size, NULL);
  free(file);
  return 0;
}
