/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorBoard's event files: records of TFRecord (length, masked CRC-32C of it, data, masked CRC-32C of that), each a
 * protobuf message tensorflow.Event. Layout: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto,
 * tensorflow/core/framework/{summary,tensor}.proto.
 */
#include "tools/compare/sources.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 12 /* length and its checksum */
#define TAIL_BYTES 4
#define TAG_BYTES 256
#define TAGS_SHOWN 12

/* ---- records */

static uint32_t little32(const uint8_t *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t little64(const uint8_t *at) {
  return (uint64_t)little32(at) | (uint64_t)little32(at + 4) << 32;
}

/* CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) by half bytes, then masked as TFRecord does. */
static uint32_t masked_crc(const uint8_t *data, size_t size) {
  static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                     0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                     0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < size; i++) {
    crc ^= data[i];
    crc = table[crc & 15] ^ crc >> 4;
    crc = table[crc & 15] ^ crc >> 4;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

bool compare_is_tensorboard(const char *start, size_t length) {
  const uint8_t *at = (const uint8_t *)start;
  return length >= HEAD_BYTES && masked_crc(at, 8) == little32(at + 8);
}

/* ---- protobuf */

struct span {
  const uint8_t *at, *end;
};

struct field {
  uint64_t number, value; /* of a varint or a fixed number */
  struct span bytes;      /* of a length-delimited one */
  unsigned wire;
};

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static bool read_varint(struct span *span, uint64_t *out) {
  *out = 0;
  for (unsigned shift = 0; shift < 64 && span->at < span->end; shift += 7) {
    uint8_t byte = *span->at++;
    *out |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80)
      return true;
  }
  return false;
}

/* The next field of a message; false at its end, or where it is damaged. */
static bool next_field(struct span *span, struct field *field) {
  uint64_t key, length;
  if (!read_varint(span, &key))
    return false;
  size_t left = (size_t)(span->end - span->at);
  field->number = key >> 3;
  field->wire = (unsigned)(key & 7);
  switch (field->wire) {
  case WIRE_VARINT:
    return read_varint(span, &field->value);
  case WIRE_64:
  case WIRE_32:
    length = field->wire == WIRE_64 ? 8 : 4;
    if (left < length)
      return false;
    field->value = length == 8 ? little64(span->at) : little32(span->at);
    break;
  case WIRE_BYTES:
    if (!read_varint(span, &length) || length > (size_t)(span->end - span->at))
      return false;
    field->bytes = (struct span){span->at, span->at + length};
    break;
  default:
    return false;
  }
  span->at += length;
  return true;
}

static double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static double float_of(uint64_t bits) {
  uint32_t low = (uint32_t)bits;
  float value;
  memcpy(&value, &low, sizeof(value));
  return (double)value;
}

static double half_of(uint32_t bits) {
  int exponent = (int)(bits >> 10 & 31);
  double fraction = (double)(bits & 1023), sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31)
    return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
  return exponent == 0 ? sign * ldexp(fraction, -24) : sign * ldexp(fraction + 1024, exponent - 25);
}

/* ---- tensors of one element */

enum { DT_FLOAT = 1, DT_DOUBLE = 2, DT_INT32 = 3, DT_INT64 = 9, DT_BFLOAT16 = 14, DT_HALF = 19 };

/* The one element in the bytes of tensor_content, or in a packed list of its type. `list`: as protobuf packs it, halves and
   integers as varints. */
static bool element(uint64_t type, struct span bytes, bool list, double *out) {
  size_t length = (size_t)(bytes.end - bytes.at);
  uint64_t value;
  if (type == DT_FLOAT && length == 4)
    *out = float_of(little32(bytes.at));
  else if (type == DT_DOUBLE && length == 8)
    *out = double_of(little64(bytes.at));
  else if (list && read_varint(&bytes, &value) && bytes.at == bytes.end)
    *out = type == DT_HALF ? half_of((uint32_t)value) : type == DT_BFLOAT16 ? float_of(value << 16) : (double)(int64_t)value;
  else if (!list && type == DT_HALF && length == 2)
    *out = half_of((uint32_t)bytes.at[0] | (uint32_t)bytes.at[1] << 8);
  else if (!list && type == DT_BFLOAT16 && length == 2)
    *out = float_of((uint64_t)bytes.at[0] << 16 | (uint64_t)bytes.at[1] << 24);
  else if (!list && type == DT_INT32 && length == 4)
    *out = (double)(int32_t)little32(bytes.at);
  else if (!list && type == DT_INT64 && length == 8)
    *out = (double)(int64_t)little64(bytes.at);
  else
    return false;
  return true;
}

/* TensorProto: dtype = 1, tensor_content = 4, float_val = 5, double_val = 6, int_val = 7, int64_val = 10, half_val = 13. */
static bool read_tensor(struct span span, double *out) {
  static const struct {
    uint64_t number, type;
  } lists[] = {{5, DT_FLOAT}, {6, DT_DOUBLE}, {7, DT_INT32}, {10, DT_INT64}, {13, DT_HALF}, {13, DT_BFLOAT16}};
  struct field field;
  struct span content = {NULL, NULL};
  uint64_t type = 0;
  bool found = false;
  while (next_field(&span, &field)) {
    if (field.number == 1 && field.wire == WIRE_VARINT)
      type = field.value;
    if (field.number == 4 && field.wire == WIRE_BYTES && field.bytes.end > field.bytes.at)
      content = field.bytes;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
      if (field.number != lists[i].number || type != lists[i].type)
        continue;
      if (field.wire == WIRE_BYTES)
        found = element(type, field.bytes, true, out) || found;
      else if (field.wire == WIRE_32 || field.wire == WIRE_64) { /* not packed */
        *out = field.wire == WIRE_32 ? float_of(field.value) : double_of(field.value);
        found = true;
      }
    }
  }
  return content.at ? element(type, content, false, out) : found;
}

/* ---- events */

struct scalar {
  int64_t step;
  double t_s, value; /* t_s since 1970 */
  char tag[TAG_BYTES];
};

typedef void take_scalar(void *context, const struct scalar *scalar);

/* Summary.Value: tag = 1, simple_value = 2, tensor = 8. */
static void read_value(struct span span, struct scalar *scalar, take_scalar *take, void *context) {
  struct field field;
  bool found = false;
  scalar->tag[0] = '\0';
  while (next_field(&span, &field)) {
    if (field.number == 1 && field.wire == WIRE_BYTES) {
      size_t length = (size_t)(field.bytes.end - field.bytes.at);
      length = length < TAG_BYTES ? length : TAG_BYTES - 1;
      for (size_t i = 0; i < length; i++)
        scalar->tag[i] = field.bytes.at[i] >= ' ' && field.bytes.at[i] <= '~' ? (char)field.bytes.at[i] : '?';
      scalar->tag[length] = '\0';
    } else if (field.number == 2 && field.wire == WIRE_32) {
      scalar->value = float_of(field.value);
      found = true;
    } else if (field.number == 8 && field.wire == WIRE_BYTES) {
      found = read_tensor(field.bytes, &scalar->value) || found;
    }
  }
  if (found && scalar->tag[0] && scalar->step >= 0 && scalar->step <= COMPARE_STEP_MAX)
    take(context, scalar);
}

/* Event: wall_time = 1, step = 2, summary = 5; Summary: value = 1. */
static void read_event(struct span span, take_scalar *take, void *context) {
  struct span summaries = span;
  struct scalar scalar = {.step = 0, .t_s = (double)NAN};
  struct field field, value;
  while (next_field(&span, &field)) {
    if (field.number == 1 && field.wire == WIRE_64)
      scalar.t_s = double_of(field.value);
    else if (field.number == 2 && field.wire == WIRE_VARINT)
      scalar.step = (int64_t)field.value;
  }
  while (next_field(&summaries, &field))
    while (field.number == 5 && field.wire == WIRE_BYTES && next_field(&field.bytes, &value))
      if (value.number == 1 && value.wire == WIRE_BYTES)
        read_value(value.bytes, &scalar, take, context);
}

struct damage {
  size_t records; /* whose checksum is wrong; skipped */
  bool cut;       /* the file ends, or cannot be followed, before a record's end */
};

static struct damage read_events(const char *data, size_t size, take_scalar *take, void *context) {
  struct span file = {(const uint8_t *)data, (const uint8_t *)data + size};
  struct damage damage = {0, false};
  while (file.at < file.end) {
    size_t left = (size_t)(file.end - file.at);
    damage.cut = left < HEAD_BYTES + TAIL_BYTES || masked_crc(file.at, 8) != little32(file.at + 8) ||
                 little64(file.at) > left - HEAD_BYTES - TAIL_BYTES;
    if (damage.cut)
      break;
    size_t length = (size_t)little64(file.at);
    const uint8_t *event = file.at + HEAD_BYTES;
    if (masked_crc(event, length) == little32(event + length))
      read_event((struct span){event, event + length}, take, context);
    else
      damage.records++;
    file.at = event + length + TAIL_BYTES;
  }
  return damage;
}

/* ---- the tags that matter */

struct tags {
  json_t *all; /* names of scalars, in the order of the file */
};

static void take_tag(void *context, const struct scalar *scalar) {
  struct tags *tags = context;
  if (!json_object_get(tags->all, scalar->tag))
    json_object_set_new(tags->all, scalar->tag, json_true());
}

static const char *choose(const json_t *all, const char *const *names) {
  const char *name, *best = NULL;
  int best_place = 0;
  json_t *value;
  json_object_foreach((json_t *)all, name, value) {
    int place = compare_name_place(names, name);
    if (place >= 0 && (!best || place < best_place)) {
      best = name;
      best_place = place;
    }
  }
  return best;
}

static char *tag_list(const json_t *all) {
  char *text = b200_format("%s", "");
  const char *name;
  json_t *value;
  size_t shown = 0;
  json_object_foreach((json_t *)all, name, value) {
    char *longer = b200_format("%s%s%s", text, shown ? ", " : "", shown == TAGS_SHOWN ? "..." : name);
    free(text);
    text = longer;
    if (shown++ == TAGS_SHOWN)
      break;
  }
  return text;
}

struct series {
  struct compare_values *out;
  const char *loss, *norm, *rate;
  struct pair {
    int64_t step;
    size_t order;
    double value;
  } * norms, *rates;
  size_t norm_count, rate_count;
};

static void take_pair(struct pair **pairs, size_t *count, const struct scalar *scalar) {
  *pairs = b200_grow(*pairs, *count, sizeof(**pairs));
  (*pairs)[*count] = (struct pair){scalar->step, *count, scalar->value};
  (*count)++;
}

static void take_series(void *context, const struct scalar *scalar) {
  struct series *series = context;
  if (strcmp(scalar->tag, series->loss) == 0) {
    struct compare_values *out = series->out;
    out->list = b200_grow(out->list, out->count, sizeof(*out->list));
    out->list[out->count++] = (struct compare_value){
        .step = scalar->step, .loss = scalar->value, .grad_norm = (double)NAN, .t_s = scalar->t_s, .rank = COMPARE_NO_LABEL};
  }
  if (series->norm && strcmp(scalar->tag, series->norm) == 0)
    take_pair(&series->norms, &series->norm_count, scalar);
  if (series->rate && strcmp(scalar->tag, series->rate) == 0)
    take_pair(&series->rates, &series->rate_count, scalar);
}

static int by_step(const void *a, const void *b) {
  const struct pair *left = a, *right = b;
  if (left->step != right->step)
    return left->step < right->step ? -1 : 1;
  return (left->order > right->order) - (left->order < right->order);
}

/* The last value of the step; `missing` without. */
static double value_at(const struct pair *pairs, size_t count, int64_t step, double missing) {
  size_t low = 0, high = count; /* the first place beyond the step */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (pairs[middle].step <= step)
      low = middle + 1;
    else
      high = middle;
  }
  return low && pairs[low - 1].step == step ? pairs[low - 1].value : missing;
}

static void join(struct series *series) {
  struct compare_values *out = series->out;
  if (series->norm_count)
    qsort(series->norms, series->norm_count, sizeof(*series->norms), by_step);
  if (series->rate_count)
    qsort(series->rates, series->rate_count, sizeof(*series->rates), by_step);
  double first = out->count ? out->list[0].t_s : (double)NAN;
  out->unix_s = first > 0 && first < 1e11 ? first : (double)NAN;
  for (size_t i = 0; i < out->count; i++) {
    struct compare_value *value = &out->list[i];
    double rate = value_at(series->rates, series->rate_count, value->step, 0);
    value->grad_norm = value_at(series->norms, series->norm_count, value->step, (double)NAN);
    value->tokens_per_s = rate > 0 ? rate : 0;
    value->t_s = isfinite(out->unix_s) && value->t_s >= first ? value->t_s - first : (double)NAN;
  }
  free(series->norms);
  free(series->rates);
}

bool compare_decode_tensorboard(const char *data, size_t size, const char *tag, struct compare_values *out, char **error) {
  struct tags tags = {.all = json_object()};
  *out = (struct compare_values){.unix_s = (double)NAN};
  struct damage damage = read_events(data, size, take_tag, &tags);
  const char *loss = tag ? (json_object_get(tags.all, tag) ? tag : NULL) : choose(tags.all, compare_loss_names);
  if (!loss) {
    char *names = tag_list(tags.all);
    *error = !names[0] ? b200_format("an event file without scalars%s", damage.cut ? ", cut off" : "")
             : tag     ? b200_format("no tag '%s' (there are: %s)", tag, names)
                       : b200_format("no tag is known as a loss (there are: %s); name one with --tag", names);
    free(names);
    json_decref(tags.all);
    return false;
  }
  struct series series = {
      .out = out, .loss = loss, .norm = choose(tags.all, compare_norm_names), .rate = choose(tags.all, compare_rate_names)};
  read_events(data, size, take_series, &series);
  join(&series);
  out->name = b200_format("%s", loss);
  if (damage.records)
    compare_note(&out->notes, &out->note_count, "%zu damaged records are skipped", damage.records);
  if (damage.cut)
    compare_note(&out->notes, &out->note_count, "it is cut off or damaged: what comes before that counts");
  json_decref(tags.all);
  return true;
}
