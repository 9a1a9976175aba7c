// The engine's table for native operations: crates/phalanx-py/src/native.rs in C. A library is compiled against it on first use.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define PHALANX_NATIVE_VERSION 3

extern "C" {

// Element types: u8, i8, u16, i16, i32, i64, f16, bf16, f32, f64, bool are 0 to 10.
typedef struct {
  void* address;
  const uint64_t* shape;
  uint32_t n_dims;
  uint32_t dtype;
} phalanx_tensor;

typedef struct {
  uint32_t kind;  // 0 allreduce, 1 allgather, 2 broadcast, 3 alltoall, 4 reducescatter, 5 barrier, 6 a comparison of parameters
  uint32_t op;    // Horovod's numbers
  uint32_t grouped;
  uint32_t process_set;
  uint32_t root;
  int32_t wire;  // -1: elements travel as they are
  // How long submit may wait and run operations on the calling thread: this saves waking a thread of the engine's.
  uint32_t patience_us;  // UINT32_MAX: until it is done
  double prescale;
  double postscale;
  const char* name;  // empty: the engine counts
  size_t n_name;
  const char* note;  // what the operation is a part of; ranks compare it
  size_t n_note;
  const phalanx_tensor* inputs;
  const phalanx_tensor* outputs;  // null: in place, or results of the engine's
  size_t n_tensors;
  const uint64_t* splits;
  size_t n_splits;
  // Of a comparison: what to do on the first line, then a name for each tensor; and its number, as turn gave it.
  const char* words;
  size_t n_words;
  uint64_t turn;
} phalanx_request;

// Valid during the call only.
typedef struct {
  uint32_t code;  // 0 done, 1 wrong argument, 2 ranks disagree or no engine, 3 failure
  const char* message;
  size_t n_message;
  const phalanx_tensor* tensors;
  size_t n_tensors;
  const uint64_t* received;
  size_t n_received;
} phalanx_result;

typedef void (*phalanx_done)(void* context, const phalanx_result* result);

typedef struct {
  uint32_t version;
  void (*submit)(const phalanx_request* request, phalanx_done done, void* context);
  // Counts a reduction under this key; its number if ranks compare parameters in it, otherwise 0.
  uint64_t (*turn)(uint32_t process_set, const char* key, size_t n_key);
} phalanx_table;

}  // extern "C"
