#include "server/kv_events/zmq_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace celer::server {
namespace {

constexpr const char* kName = "libzmq.so.5";

Result<ZmqLibrary> Open() {
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Error::NotFound("KV events need ZeroMQ, which cannot be loaded (", dlerror(),
                           "); install it (Debian: apt install libzmq5)");
  ZmqLibrary zmq{};
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (!function && !missing) missing = name;
  };
  find(zmq.ctx_new, "zmq_ctx_new");
  find(zmq.ctx_term, "zmq_ctx_term");
  find(zmq.socket, "zmq_socket");
  find(zmq.close, "zmq_close");
  find(zmq.setsockopt, "zmq_setsockopt");
  find(zmq.getsockopt, "zmq_getsockopt");
  find(zmq.bind, "zmq_bind");
  find(zmq.connect, "zmq_connect");
  find(zmq.send, "zmq_send");
  find(zmq.msg_init_data, "zmq_msg_init_data");
  find(zmq.msg_send, "zmq_msg_send");
  find(zmq.msg_close, "zmq_msg_close");
  find(zmq.recv, "zmq_recv");
  find(zmq.last_error, "zmq_errno");
  find(zmq.strerror, "zmq_strerror");
  if (missing) return Error::Unsupported(kName, " has no function ", missing, "; install libzmq 4");
  return zmq;
}

}  // namespace

Result<const ZmqLibrary*> ZmqLibrary::Load() {
  static const Result<ZmqLibrary> loaded = Open();
  if (!loaded) return loaded.error();
  return &*loaded;
}

}  // namespace celer::server
