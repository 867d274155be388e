// A server on a loopback port in front of a scripted model, for clients written elsewhere: prints
// "port N", serves until its input ends. The model thinks "hm", says the last user line again and
// calls the tool `echo` where the prompt offers tools; as a completion it repeats the prompt.

#include <cstdio>
#include <string>

#include "harness.h"

namespace {

using namespace kern_test;

std::string last_line(const std::string& prompt) {
  const std::string opened = "role=\"user\"<|sep|>";
  const size_t begin = prompt.rfind(opened) + opened.size();
  return prompt.substr(begin, prompt.find("<|close|>", begin) - begin);
}

std::vector<Token> answer(const Request& request) {
  const std::string prompt = tokenizer().decode(request.prompt, kern::text::Specials::keep);
  if (prompt.find("<|open|>message") == std::string::npos) return request.prompt;
  std::string said;
  if (prompt.ends_with("<|open|>think<|sep|>"))
    said = "hm<|close|>think<|sep|><|open|>response<|sep|>";
  said += last_line(prompt) + "<|close|>response<|sep|>";
  if (prompt.find("# Tools") != std::string::npos)
    said +=
        "<|open|>tools<|sep|><|open|>call tool=\"echo\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"text\" type=\"string\"<|sep|>" +
        last_line(prompt) + "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";
  return marked_ids(said + "<|close|>message<|sep|>");
}

}  // namespace

int main() {
  Harness harness;
  harness.on([&] { harness.backend().script = answer; });
  std::printf("port %d\n", harness.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
